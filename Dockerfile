# capro on CPUs. Build:   docker build -t capro .
# Run:                    docker run --rm -v "$PWD:/work" capro run --data /work/images --run /work/run
# Review:                 docker run --rm -p 127.0.0.1:8000:8000 -v "$PWD:/work" capro review /work/run --host 0.0.0.0 --port 8000
# CUDA:                   docker build --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu126 -t capro:cuda .
#                         docker run --rm --gpus all -v "$PWD:/work" capro:cuda run --data /work/images --run /work/run
FROM python:3.11-slim AS build
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /source
COPY pyproject.toml constraints.txt LICENSE ./
COPY src src
RUN python -m venv /opt/capro \
 && /opt/capro/bin/pip install --no-cache-dir --extra-index-url "$TORCH_INDEX" -c constraints.txt ".[review]"

FROM python:3.11-slim
RUN apt-get update && apt-get install -y --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home --uid 1000 capro
COPY --from=build /opt/capro /opt/capro
ENV PATH=/opt/capro/bin:$PATH OMP_WAIT_POLICY=passive
USER capro
WORKDIR /work
ENTRYPOINT ["capro"]
CMD ["--help"]

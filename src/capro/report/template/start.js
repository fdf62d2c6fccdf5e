// Draw everything; a button and the system's setting choose between light and dark.
const dark = matchMedia("(prefers-color-scheme: dark)");
document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement, now = root.dataset.theme || (dark.matches ? "dark" : "light");
  root.dataset.theme = now === "dark" ? "light" : "dark";
  redrawAll();
});
dark.addEventListener("change", redrawAll);
addEventListener("beforeprint", redrawAll);
for (const draw of [noiseBars, flowFigure, matrixFigure, galleries, dropped, findings, matches, curves, imageMap, confusionFigure, reliabilityFigure, thresholdFigure]) {
  try { draw(); } catch (error) { console.error(error); } // one broken figure leaves the others
}
document.documentElement.dataset.ready = "1";
drawRest();

// Before the page is drawn, so that nothing flashes.
const theme = localStorage.getItem("capro-theme");
if (theme) document.documentElement.dataset.theme = theme;

"use strict";
(() => {
  const root = document.documentElement;
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const { config, specs } = read("charts");

  const draw = (figure) => {
    const place = figure.querySelector(".chart");
    const options = {
      mode: "vega-lite", renderer: "svg", actions: false, ast: true, defaultStyle: false, config,
      tooltip: { disableDefaultStyle: true },
    };
    return vegaEmbed(place, specs[figure.id], options).then(() => {
      figure.querySelector("details:not([data-keep])")?.removeAttribute("open");
    });
  };
  Promise.all([...document.querySelectorAll("figure[id]")].map(draw))
    .then(() => root.setAttribute("data-ready", "yes"))
    .catch((error) => { root.setAttribute("data-ready", "failed"); console.error(error); });

  const say = (text) => { document.getElementById("said").textContent = text; };
  const save = (name, type, text) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  const copy = (text) => (navigator.clipboard
    ? navigator.clipboard.writeText(text).then(() => say("Copied."), () => say("This browser refused to copy."))
    : say("This browser refused to copy."));

  const actions = {
    theme: () => {
      const dark = matchMedia("(prefers-color-scheme: dark)").matches;
      const now = root.getAttribute("data-theme") || (dark ? "dark" : "light");
      root.setAttribute("data-theme", now === "dark" ? "light" : "dark");
    },
    print: () => print(),
    "copy-command": () => copy(document.getElementById("command").textContent),
    "copy-json": () => copy(JSON.stringify(read("plan"), null, 2)),
    "save-json": () => save("plan.json", "application/json", JSON.stringify(read("plan"), null, 2) + "\n"),
  };
  for (const button of document.querySelectorAll("button[data-do]")) {
    button.hidden = false;
    button.addEventListener("click", actions[button.dataset.do]);
  }
})();

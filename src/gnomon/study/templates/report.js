// Theme and filters. Without this file the pages are plain lists and follow the system's colours.
"use strict";

const THEMES = ["auto", "light", "dark"];

function storedTheme() {
  try {
    const theme = localStorage.getItem("gnomon-theme");
    return THEMES.includes(theme) ? theme : "auto";
  } catch {
    return "auto"; // a browser may refuse storage to pages opened from a file
  }
}

function showTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

let theme = storedTheme();
showTheme(theme); // before the first paint

function themeButton() {
  const button = document.getElementById("theme");
  const name = button.querySelector("span");
  name.textContent = theme;
  button.hidden = false;
  button.addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    name.textContent = theme;
    showTheme(theme);
    try {
      localStorage.setItem("gnomon-theme", theme);
    } catch { /* this page only, then */ }
  });
}

function filters() {
  const form = document.getElementById("filters");
  if (!form) return;
  const count = document.getElementById("count");
  const words = document.getElementById("words");
  const area = document.getElementById("area");
  const sections = [...document.querySelectorAll(".area")];
  const entries = sections.flatMap((section) => [...section.querySelectorAll(".entry")].map((entry) => ({
    entry,
    area: section.dataset.area,
    verdicts: entry.dataset.verdicts.split(" "),
    text: `${section.dataset.area} ${entry.textContent} ${entry.dataset.words}`.toLowerCase(),
  })));

  function apply() {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const verdicts = [...form.querySelectorAll("input[name=verdict]:checked")].map((box) => box.value);
    let shown = 0;
    for (const item of entries) {
      const fits = (!area.value || item.area === area.value)
        && (!verdicts.length || verdicts.some((v) => item.verdicts.includes(v)))
        && wanted.every((word) => item.text.includes(word));
      item.entry.hidden = !fits;
      shown += fits;
    }
    for (const section of sections) section.hidden = !section.querySelector(".entry:not([hidden])");
    count.textContent = shown === entries.length ? `All ${shown} systems` : shown ? `${shown} of ${entries.length} systems` : "No system fits these filters";
  }

  form.hidden = count.hidden = false;
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", apply);
  document.getElementById("clear").addEventListener("click", () => {
    form.reset();
    apply();
  });
  window.addEventListener("pageshow", apply); // a browser that goes back restores the fields
  apply();
}

document.addEventListener("DOMContentLoaded", () => {
  themeButton();
  filters();
});

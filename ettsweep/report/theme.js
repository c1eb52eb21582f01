// The theme, which this computer remembers: set before anything is drawn, and changed by the button in the bar.
"use strict";
(() => {
  const root = document.documentElement, KEY = "ettsweep-theme", THEMES = ["auto", "light", "dark"];
  const kept = () => { try { return THEMES.find((theme) => theme === localStorage.getItem(KEY)); } catch { return null; } };  // private windows may keep nothing
  const keep = (theme) => { try { localStorage.setItem(KEY, theme); } catch { /* until the page is closed, then */ } };
  root.dataset.theme = kept() || "auto";
  addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const label = () => { button.textContent = `Theme: ${root.dataset.theme}`; };
    button.addEventListener("click", () => {
      root.dataset.theme = THEMES[(THEMES.indexOf(root.dataset.theme) + 1) % THEMES.length];
      keep(root.dataset.theme);
      label();
    });
    label();
    button.hidden = false;
  });
})();

// The theme, kept in localStorage: set before anything is drawn, changed by the button in the bar.
"use strict";
(() => {
  const root = document.documentElement, KEY = "ettsweep-theme", THEMES = ["auto", "light", "dark"];
  const savedTheme = () => { try { return THEMES.find((theme) => theme === localStorage.getItem(KEY)); } catch { return null; } };  // private windows may have no storage
  const saveTheme = (theme) => { try { localStorage.setItem(KEY, theme); } catch { /* it lasts until the page is closed */ } };
  root.dataset.theme = savedTheme() || "auto";
  addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const label = () => { button.textContent = `Theme: ${root.dataset.theme}`; };
    button.addEventListener("click", () => {
      root.dataset.theme = THEMES[(THEMES.indexOf(root.dataset.theme) + 1) % THEMES.length];
      saveTheme(root.dataset.theme);
      label();
    });
    label();
    button.hidden = false;
  });
})();

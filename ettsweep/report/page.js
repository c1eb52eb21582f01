// The page: buttons that copy commands, and its figures.
"use strict";
(() => {
  const copyText = (code) => {
    if (navigator.clipboard) return navigator.clipboard.writeText(code.textContent).then(() => true, () => copySelection(code));
    return Promise.resolve(copySelection(code));
  };
  const copySelection = (code) => {  // pages opened as files may have no access to the clipboard
    getSelection().selectAllChildren(code);
    const succeeded = document.execCommand("copy");
    if (succeeded) getSelection().removeAllRanges();  // else the text stays selected for Ctrl-C
    return succeeded;
  };
  for (const button of document.querySelectorAll(".copy")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      button.textContent = (await copyText(button.previousElementSibling)) ? "Copied" : "Press Ctrl-C";
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
  }

  figures.drawAll().then(() => { document.documentElement.dataset.ready = "true"; });
})();

// Figures: drawn one after the other from their specifications.
"use strict";
const figures = (() => {
  const config = JSON.parse(document.getElementById("config").textContent);
  const data = JSON.parse(document.getElementById("data").textContent);

  const textsOf = (values) => (Array.isArray(values) ? values : values.at.map((index) => values.texts[index]));
  /** The rows of a data set, copied for each figure: a Vega view writes into its rows. */
  const rowsOf = (name) => {
    const { rows, columns } = data[name];
    const objects = Array.from({ length: rows }, () => ({}));
    for (const [column, values] of Object.entries(columns)) {
      textsOf(values).forEach((value, row) => { objects[row][column] = value; });
    }
    return objects;
  };

  const draw = async (figure) => {
    const spec = JSON.parse(figure.querySelector(".spec").textContent), drawing = figure.querySelector(".drawing");
    spec.datasets = Object.fromEntries(spec.datasets.map((name) => [name, rowsOf(name)]));
    await vegaEmbed(drawing, spec, {
      mode: "vega-lite", renderer: "svg", actions: false, logLevel: 1,  // errors only: Vega warns of layers that are still empty
      config, bind: figure.querySelector(".controls"),
      defaultStyle: false, tooltip: { disableDefaultStyle: true },
    });
  };
  const drawAll = async () => {
    for (const figure of document.querySelectorAll("figure[data-figure]")) {
      await new Promise((resolve) => { setTimeout(resolve); });  // lets the browser handle clicks between two figures
      try {
        await draw(figure);
      } catch (error) {
        figure.querySelector(".drawing").textContent = `This figure cannot be drawn here: ${error.message}`;
        console.error(error);
      }
    }
  };
  // --- printing ---

  const PAPER_PX = 340;  // half of the printable width of A4 or letter
  const setWidth = (width) => {
    for (const drawing of document.querySelectorAll(".pair .drawing")) drawing.style.width = width;
    dispatchEvent(new Event("resize"));  // Vega draws figures of container width anew
  };
  addEventListener("beforeprint", () => setWidth(`${PAPER_PX}px`));
  addEventListener("afterprint", () => setWidth(""));

  return { drawAll };
})();

// Figures: drawn one after the other from their specifications. Choosing a point of a map shows its curves.
"use strict";
const figures = (() => {
  const config = JSON.parse(document.getElementById("config").textContent);
  const data = JSON.parse(document.getElementById("data").textContent);
  const views = new Map();

  /** The rows of a data set, copied for each figure: a Vega view writes into its rows. */
  const rowsOf = (name) => {
    const { rows, columns } = data[name];
    const objects = Array.from({ length: rows }, () => ({}));
    for (const [column, values] of Object.entries(columns)) {
      textsOf(values).forEach((value, row) => { objects[row][column] = value; });
    }
    return objects;
  };
  const specOf = (figure) => JSON.parse(figure.querySelector(".spec").textContent);
  const pointsOf = (figure) => new Set(specOf(figure).datasets.flatMap((name) => textsOf(data[name].columns.point || [])).filter(Boolean));

  // --- choosing a point ---

  const choose = (article, point) => {
    const select = article.querySelector(".points"), curves = article.querySelector("figure.curves");
    const view = curves && views.get(curves.dataset.figure);
    if (!view || ![...select.options].some((option) => option.value === point)) return;
    select.value = point;
    view.signal("chosen", point).runAsync();
    curves.classList.toggle("chosen", point !== "");
    curves.scrollIntoView({ block: "nearest" });
  };
  const offerPoints = (article) => {
    const [map, curves] = ["map", "curves"].map((kind) => article.querySelector(`figure.${kind}`));
    if (!map || !curves || !views.has(curves.dataset.figure)) return;
    const curvePoints = pointsOf(curves), select = article.querySelector(".points");
    const points = [...pointsOf(map)].filter((point) => !curvePoints.size || curvePoints.has(point));
    select.replaceChildren(new Option("the candidate and its neighbours", ""), ...points.map((point) => new Option(point, point)));
    select.addEventListener("change", () => choose(article, select.value));
    select.closest(".choice").hidden = false;
    views.get(map.dataset.figure)?.addEventListener("click", (_, item) => {
      const point = item && item.datum && item.datum.point;
      if (typeof point === "string") choose(article, point);
    });
  };

  // --- drawing ---

  const draw = async (figure) => {
    const spec = specOf(figure), drawing = figure.querySelector(".drawing");
    spec.datasets = Object.fromEntries(spec.datasets.map((name) => [name, rowsOf(name)]));
    const { view } = await vegaEmbed(drawing, spec, {
      mode: "vega-lite", renderer: "svg", actions: false, logLevel: 1,  // errors only: Vega warns of layers that are still empty
      config, bind: figure.querySelector(".controls"),
      defaultStyle: false, tooltip: { disableDefaultStyle: true },
    });
    views.set(figure.dataset.figure, view);
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
    document.querySelectorAll("article[data-family]").forEach(offerPoints);
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

// Figures: drawn one after the other from their specifications; a point of a map shows its curves.
"use strict";
const figures = (() => {
  const config = JSON.parse(document.getElementById("config").textContent);
  const data = JSON.parse(document.getElementById("data").textContent);
  const views = new Map();

  /** The rows of a data set, new ones for each figure: a view writes into its rows. */
  const rowsOf = (name) => {
    const { rows, columns } = data[name];
    const found = Array.from({ length: rows }, () => ({}));
    for (const [column, values] of Object.entries(columns)) {
      textsOf(values).forEach((value, row) => { found[row][column] = value; });
    }
    return found;
  };
  const specOf = (figure) => JSON.parse(figure.querySelector(".spec").textContent);
  const pointsOf = (figure) => new Set(specOf(figure).datasets.flatMap((name) => textsOf(data[name].columns.point || [])).filter(Boolean));

  // --- a point of a map shows its curves ---

  const choose = (article, point) => {
    const select = article.querySelector(".points"), curves = article.querySelector("figure.curves");
    const view = curves && views.get(curves.dataset.figure);
    if (!view || ![...select.options].some((option) => option.value === point)) return;
    select.value = point;
    view.signal("chosen", point).runAsync();
    curves.classList.toggle("chosen", point !== "");
    curves.scrollIntoView({ block: "nearest" });
  };
  const offer = (article) => {
    const [map, curves] = ["map", "curves"].map((kind) => article.querySelector(`figure.${kind}`));
    if (!map || !curves || !views.has(curves.dataset.figure)) return;
    const drawn = pointsOf(curves), select = article.querySelector(".points");
    const offered = [...pointsOf(map)].filter((point) => !drawn.size || drawn.has(point));
    select.replaceChildren(new Option("the candidate and its neighbours", ""), ...offered.map((point) => new Option(point, point)));
    select.addEventListener("change", () => choose(article, select.value));
    select.closest(".choice").hidden = false;
    views.get(map.dataset.figure)?.addEventListener("click", (_, item) => {
      const point = item && item.datum && item.datum.point;
      if (typeof point === "string") choose(article, point);
    });
  };

  // --- drawing ---

  const draw = async (figure) => {
    const spec = specOf(figure), place = figure.querySelector(".drawing");
    spec.datasets = Object.fromEntries(spec.datasets.map((name) => [name, rowsOf(name)]));
    const { view } = await vegaEmbed(place, spec, {
      mode: "vega-lite", renderer: "svg", actions: false, logLevel: 1,  // that a layer has nothing to show yet is no news
      config, bind: figure.querySelector(".controls"),
      defaultStyle: false, tooltip: { disableDefaultStyle: true },
    });
    views.set(figure.dataset.figure, view);
  };
  const drawAll = async () => {
    for (const figure of document.querySelectorAll("figure[data-figure]")) {
      await new Promise((go) => { setTimeout(go); });  // the page stays quick meanwhile
      try {
        await draw(figure);
      } catch (error) {
        figure.querySelector(".drawing").textContent = `This figure cannot be drawn here: ${error.message}`;
        console.error(error);
      }
    }
    document.querySelectorAll("article[data-family]").forEach(offer);
  };
  // --- on paper ---

  const PAPER_PX = 340;  // half of a page between its margins, A4 or letter
  const asWideAs = (width) => {
    for (const drawing of document.querySelectorAll(".pair .drawing")) drawing.style.width = width;
    dispatchEvent(new Event("resize"));  // figures as wide as their page are drawn anew
  };
  addEventListener("beforeprint", () => asWideAs(`${PAPER_PX}px`));
  addEventListener("afterprint", () => asWideAs(""));

  return { drawAll };
})();

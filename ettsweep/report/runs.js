// The table of runs: sorted, filtered and folded here; of those that match, a window of rows is on the page.
"use strict";
const textsOf = (values) => (Array.isArray(values) ? values : values.at.map((place) => values.texts[place]));

(() => {
  const place = document.getElementById("listing");
  if (!place) return;
  const WINDOW = 200, MOST_CHOICES = 40;
  const data = JSON.parse(document.getElementById("runs-data").textContent);
  const columns = data.columns.map((column) => ({ ...column, values: textsOf(column.values) }));
  const byName = new Map(columns.map((column) => [column.name, column]));
  const [head, body] = [place.querySelector("thead"), place.querySelector("tbody")];
  const [search, told, more] = [place.querySelector("input[type=search]"), place.querySelector(".told"), place.querySelector(".more")];
  for (const column of columns.filter((one) => one.kind === "choice")) {
    const found = [...new Set(column.values)].filter(Boolean).sort();
    if (found.length <= MOST_CHOICES) column.choices = found;
  }
  const state = { sort: null, filters: {}, text: "", rows: WINDOW };

  // --- cells ---

  const numeric = (column) => ["number", "share", "power"].includes(column.kind);

  /** Digits that tell the values of a column apart, four at least. */
  const digitsOf = (column) => {
    const found = column.values.filter((value) => typeof value === "number");
    const [low, high] = found.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
    const apart = high > low ? Math.ceil(Math.log10(Math.max(Math.abs(low), Math.abs(high)) / (high - low))) : 0;
    return Math.min(15, Math.max(4, apart + 3));
  };
  const plain = (value, digits) => {
    if (Number.isInteger(value) && Math.abs(value) < 1e9) return String(value);
    const size = Math.abs(value);
    return size !== 0 && (size < 1e-4 || size >= 10 ** Math.max(6, digits)) ? value.toExponential(digits - 1) : String(Number(value.toPrecision(digits)));
  };
  const power = (value) => {
    const exponent = Math.round(Math.log2(value) * 1e9) / 1e9;
    return value > 0 && exponent === Math.round(exponent * 100) / 100 ? `2^${exponent}` : plain(value, 4);
  };
  const textOf = (column, row) => {
    const value = column.values[row];
    if (value === null || value === "") return "";
    if (column.kind === "power") return power(value);
    if (column.kind === "share") return `${plain(100 * value, 4)}%`;
    if (column.kind === "number") return plain(value, (column.digits ??= digitsOf(column)));
    return String(value);
  };
  const link = (text, address, label) => {
    const found = document.createElement("a");
    Object.assign(found, { textContent: text, href: address });
    if (label) found.setAttribute("aria-label", label);
    return found;
  };
  const cellOf = (column, row) => {
    const cell = document.createElement("td");
    const run = byName.get("run").values[row], value = column.values[row];
    if (column.kind === "run") cell.append(link(run, `${data.folder}${run}/`));
    else if (column.kind === "log") cell.append(value ? link("log", `${data.folder}${run}/${value}`, `Log of run ${run}`) : "");
    else cell.textContent = textOf(column, row);
    if (numeric(column)) cell.className = "n";
    if (column.kind === "text") cell.className = "text";
    if (column.name === "state") cell.className = `state ${value}`;
    return cell;
  };

  // --- which rows ---

  const number = (text) => {
    const exponent = /^2\^(-?[\d.]+)$/.exec(text);
    return exponent ? 2 ** Number(exponent[1]) : text === "" ? NaN : Number(text.replace(/%$/, ""));
  };
  const COMPARE = {
    "<": (a, b) => a < b, "<=": (a, b) => a <= b, ">": (a, b) => a > b, ">=": (a, b) => a >= b,
    "=": (a, b) => Math.abs(a - b) <= 1e-9 * Math.max(Math.abs(a), Math.abs(b)),
  };
  /** What a filter says of a row: a comparison of numbers, one text of a list, or a part of the text. */
  const filterOf = (column, wanted) => {
    if (column.choices) return (row) => column.values[row] === wanted;
    const asked = /^\s*(<=|>=|<|>|=)\s*(\S+)\s*$/.exec(wanted);
    const limit = asked ? number(asked[2]) : NaN;
    if (numeric(column) && !Number.isNaN(limit)) {
      const scale = column.kind === "share" ? 100 : 1;
      return (row) => column.values[row] !== null && COMPARE[asked[1]](scale * column.values[row], limit);
    }
    const part = wanted.trim().toLowerCase();
    return (row) => textOf(column, row).toLowerCase().includes(part);
  };
  const whole = new Array(data.rows);
  const wholeText = (row) => (whole[row] ??= columns.map((column) => textOf(column, row)).join("\n").toLowerCase());

  const matching = () => {
    const asked = Object.entries(state.filters).filter(([, wanted]) => wanted !== "");
    const filters = asked.map(([name, wanted]) => filterOf(byName.get(name), wanted));
    const words = state.text.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = [];
    for (let row = 0; row < data.rows; row += 1) {
      if (filters.every((keeps) => keeps(row)) && words.every((word) => wholeText(row).includes(word))) rows.push(row);
    }
    const sorted = state.sort && byName.get(state.sort.name);
    if (!sorted) return rows;
    const sign = state.sort.down ? -1 : 1;
    const missing = (value) => value === null || value === "";
    return rows.sort((a, b) => {
      const [x, y] = [sorted.values[a], sorted.values[b]];
      if (missing(x) || missing(y)) return missing(x) - missing(y) || a - b;  // what is missing comes last, either way
      return (typeof x === "number" ? sign * (x - y) : sign * String(x).localeCompare(String(y), undefined, { numeric: true })) || a - b;
    });
  };

  // --- the page ---

  const visible = () => columns.filter((column) => column.shown);

  const showRows = () => {
    const rows = matching(), cells = visible();
    body.replaceChildren(...rows.slice(0, state.rows).map((row) => {
      const line = document.createElement("tr");
      line.append(...cells.map((column) => cellOf(column, row)));
      return line;
    }));
    more.hidden = rows.length <= state.rows;
    const part = rows.length > state.rows ? `, the first ${state.rows} shown` : "";
    told.textContent = `${rows.length} of ${data.rows} run${data.rows === 1 ? "" : "s"}${part}`;
  };
  const again = () => { state.rows = WINDOW; showRows(); };

  const sortBy = (name) => {
    const same = state.sort && state.sort.name === name;
    state.sort = same && state.sort.down ? null : { name, down: Boolean(same) };
    for (const cell of head.querySelectorAll("th[data-name]")) setOrder(cell);
    again();
  };
  const setOrder = (cell) => {
    const sorted = state.sort && state.sort.name === cell.dataset.name;
    cell.setAttribute("aria-sort", sorted ? (state.sort.down ? "descending" : "ascending") : "none");
  };
  const heading = (column) => {
    const cell = document.createElement("th"), button = document.createElement("button");
    cell.dataset.name = column.name;
    cell.scope = "col";
    if (numeric(column)) cell.className = "n";
    Object.assign(button, { type: "button", textContent: column.label });
    button.addEventListener("click", () => sortBy(column.name));
    cell.append(button);
    setOrder(cell);
    return cell;
  };
  const filter = (column) => {
    const cell = document.createElement("td");
    if (column.kind === "log") return cell;
    let field = document.createElement("input");
    if (column.choices) {
      field = document.createElement("select");
      field.append(new Option("all", ""), ...column.choices.map((text) => new Option(text, text)));
    } else {
      Object.assign(field, { type: "text", autocomplete: "off", spellcheck: false, placeholder: numeric(column) ? "<, >=, =" : "" });
    }
    field.setAttribute("aria-label", `Filter ${column.label}`);
    field.value = state.filters[column.name] || "";
    field.addEventListener(column.choices ? "change" : "input", () => { state.filters[column.name] = field.value; again(); });
    cell.append(field);
    return cell;
  };
  const showHead = () => {
    const names = document.createElement("tr"), filters = document.createElement("tr");
    filters.className = "filters";
    names.append(...visible().map(heading));
    filters.append(...visible().map(filter));
    head.replaceChildren(names, filters);
  };
  const box = (column) => {
    const label = document.createElement("label"), field = document.createElement("input");
    Object.assign(field, { type: "checkbox", checked: column.shown });
    field.addEventListener("change", () => {
      column.shown = field.checked;
      if (!field.checked) delete state.filters[column.name];  // a filter that nobody sees is a trap
      showHead();
      again();
    });
    label.append(field, ` ${column.label}`);
    return label;
  };

  place.querySelector(".boxes").append(...columns.map(box));
  place.querySelector(".fold").addEventListener("keydown", (event) => {
    if (event.key === "Escape") { event.currentTarget.open = false; event.currentTarget.querySelector("summary").focus(); }
  });
  search.addEventListener("input", () => { state.text = search.value; again(); });
  place.querySelector(".clear").addEventListener("click", () => {
    Object.assign(state, { filters: {}, text: "" });
    search.value = "";
    showHead();
    again();
  });
  more.addEventListener("click", () => { state.rows += WINDOW; showRows(); });
  showHead();
  showRows();
  place.hidden = false;
})();

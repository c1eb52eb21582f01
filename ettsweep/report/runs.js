// The table of runs: sorted and filtered here. Only the first rows that match are on the page: thousands would be slow.
"use strict";
const textsOf = (values) => (Array.isArray(values) ? values : values.at.map((index) => values.texts[index]));

(() => {
  const listing = document.getElementById("listing");
  if (!listing) return;
  const WINDOW = 200, MAX_CHOICES = 40;
  const data = JSON.parse(document.getElementById("runs-data").textContent);
  const columns = data.columns.map((column) => ({ ...column, values: textsOf(column.values) }));
  const byName = new Map(columns.map((column) => [column.name, column]));
  const [head, body] = [listing.querySelector("thead"), listing.querySelector("tbody")];
  const [search, matches, more] = [listing.querySelector("input[type=search]"), listing.querySelector(".matches"), listing.querySelector(".more")];
  for (const column of columns.filter((column) => column.kind === "choice")) {
    const choices = [...new Set(column.values)].filter(Boolean).sort();
    if (choices.length <= MAX_CHOICES) column.choices = choices;
  }
  const state = { sort: null, filters: {}, text: "", rows: WINDOW };

  // --- cells ---

  const numeric = (column) => ["number", "share", "power"].includes(column.kind);

  /** Significant digits that distinguish the values of a column, four at least. */
  const digitsOf = (column) => {
    const numbers = column.values.filter((value) => typeof value === "number");
    const [low, high] = numbers.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
    const apart = high > low ? Math.ceil(Math.log10(Math.max(Math.abs(low), Math.abs(high)) / (high - low))) : 0;
    return Math.min(15, Math.max(4, apart + 3));
  };
  const plain = (value, digits) => {
    if (Number.isInteger(value) && Math.abs(value) < 1e9) return String(value);
    const size = Math.abs(value);
    return size !== 0 && (size < 1e-4 || size >= 10 ** Math.max(6, digits)) ? value.toExponential(digits - 1) : String(Number(value.toPrecision(digits)));
  };
  const log2 = (value) => Math.round(Math.log2(value) * 1e9) / 1e9;
  // The shortest decimal that means the same run: run ids round log2 to nine decimals.
  const decimal = (value) => {
    for (let digits = 1; digits < 17; digits++) {
      const rounded = Number(value.toPrecision(digits));
      if (log2(rounded) === log2(value)) return String(rounded);
    }
    return String(value);
  };
  const power = (value) => {
    if (!(value > 0)) return plain(value, 4);
    const exponent = log2(value);
    return exponent === Math.round(exponent * 100) / 100 ? `2^${exponent} (${decimal(value)})` : decimal(value);
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
    const anchor = document.createElement("a");
    Object.assign(anchor, { textContent: text, href: address });
    if (label) anchor.setAttribute("aria-label", label);
    return anchor;
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

  // --- filters and order ---

  const number = (text) => {
    const exponent = /^2\^(-?[\d.]+)$/.exec(text);
    return exponent ? 2 ** Number(exponent[1]) : text === "" ? NaN : Number(text.replace(/%$/, ""));
  };
  const COMPARE = {
    "<": (a, b) => a < b, "<=": (a, b) => a <= b, ">": (a, b) => a > b, ">=": (a, b) => a >= b,
    "=": (a, b) => Math.abs(a - b) <= 1e-9 * Math.max(Math.abs(a), Math.abs(b)),
  };
  /** The test of a filter: a comparison with a number, a choice from a list, or a part of the text. */
  const filterOf = (column, query) => {
    if (column.choices) return (row) => column.values[row] === query;
    const comparison = /^\s*(<=|>=|<|>|=)\s*(\S+)\s*$/.exec(query);
    const limit = comparison ? number(comparison[2]) : NaN;
    if (numeric(column) && !Number.isNaN(limit)) {
      const scale = column.kind === "share" ? 100 : 1;
      return (row) => column.values[row] !== null && COMPARE[comparison[1]](scale * column.values[row], limit);
    }
    const text = query.trim().toLowerCase();
    return (row) => textOf(column, row).toLowerCase().includes(text);
  };
  const rowTexts = new Array(data.rows);
  const rowText = (row) => (rowTexts[row] ??= columns.map((column) => textOf(column, row)).join("\n").toLowerCase());

  const matching = () => {
    const active = Object.entries(state.filters).filter(([, query]) => query !== "");
    const filters = active.map(([name, query]) => filterOf(byName.get(name), query));
    const words = state.text.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = [];
    for (let row = 0; row < data.rows; row += 1) {
      if (filters.every((keeps) => keeps(row)) && words.every((word) => rowText(row).includes(word))) rows.push(row);
    }
    const sorted = state.sort && byName.get(state.sort.name);
    if (!sorted) return rows;
    const sign = state.sort.down ? -1 : 1;
    const missing = (value) => value === null || value === "";
    return rows.sort((a, b) => {
      const [x, y] = [sorted.values[a], sorted.values[b]];
      if (missing(x) || missing(y)) return missing(x) - missing(y) || a - b;  // missing values come last in both directions
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
    const limit = rows.length > state.rows ? `, the first ${state.rows} shown` : "";
    matches.textContent = `${rows.length} of ${data.rows} run${data.rows === 1 ? "" : "s"}${limit}`;
  };
  const refresh = () => { state.rows = WINDOW; showRows(); };

  const sortBy = (name) => {
    const same = state.sort && state.sort.name === name;
    state.sort = same && state.sort.down ? null : { name, down: Boolean(same) };
    for (const cell of head.querySelectorAll("th[data-name]")) setOrder(cell);
    refresh();
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
    field.addEventListener(column.choices ? "change" : "input", () => { state.filters[column.name] = field.value; refresh(); });
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
      if (!field.checked) delete state.filters[column.name];  // else a hidden filter would go on hiding rows
      showHead();
      refresh();
    });
    label.append(field, ` ${column.label}`);
    return label;
  };

  listing.querySelector(".boxes").append(...columns.map(box));
  listing.querySelector(".fold").addEventListener("keydown", (event) => {
    if (event.key === "Escape") { event.currentTarget.open = false; event.currentTarget.querySelector("summary").focus(); }
  });
  search.addEventListener("input", () => { state.text = search.value; refresh(); });
  listing.querySelector(".clear").addEventListener("click", () => {
    Object.assign(state, { filters: {}, text: "" });
    search.value = "";
    showHead();
    refresh();
  });
  more.addEventListener("click", () => { state.rows += WINDOW; showRows(); });
  showHead();
  showRows();
  listing.hidden = false;
})();

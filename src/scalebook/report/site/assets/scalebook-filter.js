// One choice for a whole page: filters by platform, model, strategy and source, and one run that
// is picked by a click on its mark or row. Whatever names a run (`run_id` in a chart's rows,
// `data-run` on a table's row) takes part; nothing has to be declared. No module, no request.
(function () {
  "use strict";
  const FACETS = ["platform", "model", "strategy", "source"];
  const NONE = "none"; // how a missing value is called in the menus
  const known = window.SCALEBOOK_RUNS || { values: [[], [], [], []], runs: [] };
  const runs = new Map(known.runs.map(function (entry) {
    return [entry[0], FACETS.map(function (name, i) { return known.values[i][entry[i + 1]]; })];
  }));
  let chosen = {}; // facet -> value
  let picked = null; // run id
  let tell = function () {};

  function name(value) {
    return value === null || value === undefined ? NONE : (known.titles || {})[value] || String(value).replace(/_/g, " ");
  }

  // The four facets of a row: those of its run, else those that it has itself; undefined: unknown.
  function facts(row) {
    return runs.get(row.run_id) || FACETS.map(function (facet) { return row[facet]; });
  }

  function keeps(row) {
    const own = facts(row);
    return FACETS.every(function (facet, i) {
      return !(facet in chosen) || own[i] === undefined || name(own[i]) === chosen[facet];
    });
  }

  function isActive() { return Object.keys(chosen).length > 0; }

  // Every list of rows inside a specification, with a function that replaces it.
  function lists(spec, visit) {
    for (const key in spec.datasets || {}) {
      spec.datasets[key] = visit(spec.datasets[key]);
    }
    if (spec.data && Array.isArray(spec.data.values)) spec.data.values = visit(spec.data.values);
    for (const part of [].concat(spec.layer || [], spec.hconcat || [], spec.vconcat || [],
      spec.spec || [])) lists(part, visit);
  }

  function encodings(spec, visit) {
    if (spec.encoding) visit(spec.encoding);
    for (const part of [].concat(spec.layer || [], spec.hconcat || [], spec.vconcat || [],
      spec.spec || [])) encodings(part, visit);
  }

  function distinct(rows, field) {
    return Array.from(new Set(rows.map(function (row) { return row[field]; })))
      .filter(function (value) { return value !== undefined && value !== null; });
  }

  // A colour keeps its meaning while runs come and go: the scale is that of all rows.
  function pin(encoding, all, left) {
    for (const channel of ["color", "shape", "strokeDash"]) {
      const own = encoding[channel];
      if (!own || !own.field || own.type !== "nominal" || (own.scale && own.scale.domain)) continue;
      if (own.scale === null) continue;
      const values = Array.isArray(own.sort) ? own.sort.slice() : distinct(all, own.field).sort();
      if (!values.length) continue;
      own.scale = Object.assign({}, own.scale, { domain: values });
      if (own.legend !== null) {
        const kept = new Set(distinct(left, own.field));
        own.legend = Object.assign({}, own.legend, {
          values: values.filter(function (value) { return kept.has(value); }),
        });
      }
    }
  }

  // Return the specification with the rows of the choice alone; null where none of them is left.
  function narrow(spec) {
    if (!isActive()) return spec;
    const all = [], left = [];
    let named = 0, kept = 0;
    lists(spec, function (rows) {
      const rest = rows.filter(function (row) {
        const counts = facts(row).some(function (value) { return value !== undefined; });
        const keep = keeps(row);
        named += counts ? 1 : 0;
        kept += counts && keep ? 1 : 0;
        return keep;
      });
      all.push.apply(all, rows);
      left.push.apply(left, rest);
      return rest;
    });
    if (named && !kept) return null;
    let share = 1;
    encodings(spec, function (encoding) {
      pin(encoding, all, left);
      const y = encoding.y;
      if (y && y.field && y.type === "nominal") {
        share = distinct(left, y.field).length / Math.max(1, distinct(all, y.field).length);
      }
    });
    if (typeof spec.height === "number") spec.height = Math.max(40, Math.round(spec.height * share));
    return spec;
  }

  // The row of a table: its run, else what its cells say.
  function tableKeeps(run, cells) {
    return !isActive() || keeps(run ? { run_id: run } : cells());
  }

  function runOf(item) {
    const datum = item && item.datum;
    return datum && datum.run_id !== undefined && runs.has(datum.run_id) ? datum.run_id : null;
  }

  // Dim every mark of another run, in the charts that show the picked one.
  function mark(place) {
    const marks = Array.from(place.querySelectorAll("svg.marks .role-mark path, svg.marks .role-mark line"));
    const ids = marks.map(function (node) { return runOf(node.__data__); });
    const here = picked !== null && ids.includes(picked);
    marks.forEach(function (node, i) {
      node.classList.toggle("sb-dim", here && ids[i] !== null && ids[i] !== picked);
    });
  }

  function watch(view) {
    view.addEventListener("click", function (event, item) {
      const run = runOf(item);
      if (run !== null) pick(run);
    });
  }

  function pick(run) {
    picked = run === picked ? null : run;
    show();
    tell("picked");
  }

  let bar = null, note = null, hint = null;
  const menus = {};

  function menu(facet, values) {
    const label = document.createElement("label");
    const select = document.createElement("select");
    select.name = "sb-" + facet;
    select.append(new Option("all", ""));
    for (const value of values) select.append(new Option(value, value));
    select.addEventListener("change", function () {
      if (select.value) chosen[facet] = select.value; else delete chosen[facet];
      changed();
    });
    label.append(facet + " ", select);
    menus[facet] = select;
    return label;
  }

  function clear() {
    chosen = {};
    picked = null;
    for (const facet in menus) menus[facet].value = "";
    changed();
  }

  function changed() {
    try { sessionStorage.setItem("scalebook-filter", JSON.stringify(chosen)); } catch (error) { /* not kept */ }
    show();
    tell("filtered");
  }

  function show() {
    if (!bar) return;
    const total = runs.size;
    let left = 0;
    for (const id of runs.keys()) left += keeps({ run_id: id }) ? 1 : 0;
    const words = isActive() ? [left + " of " + total + " runs; sentences are about all of them."] : [];
    if (picked !== null) words.push("Picked: " + picked + ".");
    note.textContent = words.join(" ");
    bar.classList.toggle("is-active", words.length > 0);
    bar.querySelector("button").hidden = words.length === 0;
    hint.hidden = words.length > 0;
    document.querySelectorAll("tr[data-run]").forEach(function (row) {
      row.classList.toggle("is-picked", picked !== null && row.dataset.run === picked);
    });
  }

  function build(place) {
    const choices = FACETS.map(function (facet, i) {
      return Array.from(new Set(Array.from(runs.values(), function (own) { return name(own[i]); }))).sort();
    });
    if (runs.size < 2 || !place) return;
    bar = document.createElement("div");
    bar.className = "sb-filter";
    bar.setAttribute("role", "group");
    bar.setAttribute("aria-label", "Filter the charts and tables of this page");
    FACETS.forEach(function (facet, i) {
      if (choices[i].length > 1) bar.append(menu(facet, choices[i]));
    });
    hint = document.createElement("span");
    hint.className = "hint";
    hint.textContent = "A click on a mark or a row picks its run in every chart.";
    note = document.createElement("span");
    note.className = "now";
    note.setAttribute("role", "status");
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Show all";
    button.addEventListener("click", clear);
    bar.append(hint, note, button);
    place.before(bar);
    document.addEventListener("keydown", function (event) {
      if (event.key === "Escape" && picked !== null) pick(picked);
    });
    restore(choices);
    show();
  }

  // The choice of the page before, as far as this report still has its values.
  function restore(choices) {
    let old = {};
    try { old = JSON.parse(sessionStorage.getItem("scalebook-filter") || "{}"); } catch (error) { old = {}; }
    FACETS.forEach(function (facet, i) {
      if (menus[facet] && choices[i].includes(old[facet])) {
        chosen[facet] = menus[facet].value = old[facet];
      }
    });
  }

  window.ScalebookFilter = {
    narrow: narrow, encodings: encodings, tableKeeps: tableKeeps, mark: mark, watch: watch, pick: pick, clear: clear,
    build: build, show: show, isActive: isActive,
    onChange: function (listener) { tell = listener; },
  };
})();

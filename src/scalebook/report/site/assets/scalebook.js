// Draws the charts, sorts, searches and pages the tables, keeps the choice of light or dark.
// Everything here also works from a file: no module, no request.
(function () {
  "use strict";
  const root = document.documentElement;
  const system = window.matchMedia("(prefers-color-scheme: dark)");

  function stored() {
    try { return localStorage.getItem("scalebook-theme"); } catch (error) { return null; }
  }

  function isDark() {
    return root.dataset.theme ? root.dataset.theme === "dark" : system.matches;
  }

  // Charts: the specification is data in the script element behind the chart's place.
  const filter = window.ScalebookFilter;
  const drawn = new WeakMap(); // place -> what vegaEmbed returned
  function draw(part) {
    if (typeof vegaEmbed === "undefined") return;
    document.querySelectorAll(".sb-chart").forEach(function (place, index) {
      if (part && part.contains && !part.contains(place)) return;
      // a page that is not shown draws when it is, and so does a folded chart
      if (place.clientWidth > 0 && !place.closest("details:not([open])")) drawOne(place, index);
      else { forget(place); place.classList.remove("is-empty"); }
    });
  }

  function forget(place) {
    if (drawn.has(place)) drawn.get(place).finalize();
    drawn.delete(place);
  }

  // A name of a row is written in full, on as many lines as it needs; the rows grow with it.
  const ROOM = {
    wide: { line: 76, size: 11, step: 12, gap: 8 },
    narrow: { line: 24, size: 10, step: 11, gap: 6 },
  };

  function wrapped(text, room) {
    const lines = [""];
    for (const part of text.split(room === ROOM.wide ? /(?<= · )/ : /(?<=\D )(?!· )/)) {
      const last = lines.length - 1;
      if (lines[last] && (lines[last] + part).trim().length > room.line) lines.push(part);
      else lines[last] += part;
    }
    return lines.map(function (line) { return line.replace(/( ·)? $/, ""); });
  }

  function namedRows(spec, room) {
    const axes = [], names = {};
    filter.encodings(spec, function (encoding) {
      const y = encoding.y;
      if (!y || y.type !== "nominal" || !Array.isArray(y.sort)) return;
      axes.push(y);
      for (const name of y.sort) names[name] = wrapped(String(name), room);
    });
    const most = Math.max(0, ...Object.values(names).map(function (lines) { return lines.length; }));
    if (!most) return;
    const shift = []; // Vega writes the lines of a label below its first
    for (let many = 2; many <= most; many++) {
      const those = Object.keys(names).filter(function (name) { return names[name].length === many; });
      shift.push({ test: "indexof(" + JSON.stringify(those) + ", datum.label) >= 0", value: -(many - 1) * room.step / 2 });
    }
    for (const y of axes) {
      y.axis = Object.assign({}, y.axis, {
        labelExpr: JSON.stringify(names) + "[datum.label] || datum.label", labelLimit: 460,
        labelFontSize: room.size, labelLineHeight: room.step, labelBaseline: "middle",
      }, shift.length ? { labelOffset: { condition: shift, value: 0 } } : {});
    }
    const high = Object.keys(names).length * (most * room.step + room.gap);
    if (typeof spec.height === "number") spec.height = Math.max(spec.height, high);
  }

  // So is a name of a legend, which has as many letters to a line as its columns leave room for.
  function namedLegends(spec, line) {
    filter.encodings(spec, function (encoding) {
      for (const own of [encoding.color, encoding.shape, encoding.strokeDash]) {
        const known = own && (own.scale && own.scale.domain || own.sort);
        if (!Array.isArray(known) || own.legend === null) continue;
        const names = {};
        for (const name of known) names[name] = wrapped(String(name), { line: line });
        own.legend = Object.assign({}, own.legend, {
          labelExpr: JSON.stringify(names) + "[datum.label] || datum.label", labelLimit: 0,
        });
      }
    });
  }

  function drawOne(place, index) {
    const config = window.SCALEBOOK_CHARTS[isDark() ? "dark" : "light"];
    let text = place.nextElementSibling.textContent;
    // a colour that a chart names is of the light palette: the dark one has the same hue in its place
    if (isDark()) window.SCALEBOOK_CHARTS.light.range.category.forEach(function (hue, i) {
      text = text.split(hue).join(config.range.category[i]);
    });
    const spec = filter.narrow(JSON.parse(text));
    forget(place);
    place.classList.toggle("is-empty", spec === null);
    if (spec === null) {
      place.textContent = "Nothing of this chart is in the selection.";
      return;
    }
    const narrow = place.clientWidth < 560;
    if (typeof spec.title === "string") spec.title = wrapped(spec.title, { line: narrow ? 38 : 150 });
    namedRows(spec, narrow ? ROOM.narrow : ROOM.wide);
    const axisY = Object.assign({}, config.axisY, narrow ? { labelFontSize: 10 } : {});
    namedLegends(spec, narrow ? 42 : Math.floor(place.clientWidth / config.legend.columns / 6) - 4);
    const axisX = Object.assign(
      { labelSeparation: 6 },
      narrow ? { titleAnchor: "end", labelFlush: 20, labelOverlap: "greedy" } : {},
    );
    const legend = Object.assign({}, config.legend, narrow ? { columns: 1, labelFontSize: 10 } : {});
    vegaEmbed(place, spec, {
      mode: "vega-lite",
      ast: true, // expressions are interpreted: no code is made from a specification
      renderer: "svg",
      // a layer that the filter has emptied is no mistake: then errors (Vega's level 1) alone go to
      // the console, else warnings (2) too
      logLevel: filter.isActive() ? 1 : 2,
      actions: { export: true, source: false, compiled: false, editor: false },
      config: Object.assign({}, config, { axisX: axisX, axisY: axisY, legend: legend }),
      tooltip: { theme: isDark() ? "dark" : "light" },
      downloadFileName: "scalebook-chart-" + (index + 1),
    }).then(function (result) {
      drawn.set(place, result);
      // an image may hold no menu, a figure may
      place.setAttribute("role", "figure");
      // the chart's place has the words; the picture inside repeats them to nobody
      const svg = place.querySelector("svg.marks");
      if (svg) svg.setAttribute("aria-hidden", "true");
      const menu = place.querySelector("summary");
      if (menu) menu.setAttribute("aria-label", "Save this chart");
      filter.watch(result.view);
      filter.mark(place);
    }).catch(function (error) {
      place.textContent = "This chart could not be drawn: " + error.message;
      place.classList.add("message");
    });
  }

  // Tables: the exact value of a cell is in data-value. A long table keeps the rows after its
  // first ones as data in the script element behind it; the page makes the rows that it shows.
  const COLUMNS = 10; // shown at first; scalebook.css hides the others
  const PAGE = 100; // rows at a time, of a table that comes with such data
  const tables = []; // {box, table, rows, keys, long, page, words, left}

  // On a phone a row is a card whose lines carry the headings.
  function labelled(tr, labels) {
    for (const cell of tr.cells) cell.dataset.label = labels[cell.cellIndex] || "";
    return tr;
  }

  function fromElement(row) {
    const values = Array.from(row.cells, function (cell) { return cell.dataset.value; });
    return { tr: row, values: values, run: row.dataset.run, id: row.id };
  }

  // An entry is [class, id, run, [value, html] ...]; a cell without html shows its value.
  function fromData(entry) {
    return { entry: entry, values: entry.slice(3).map(function (cell) { return cell[0]; }),
      run: entry[2] || undefined, id: entry[1] };
  }

  function element(row, kinds, labels) {
    if (row.tr) return row.labelled ? row.tr : (row.labelled = true, labelled(row.tr, labels));
    const tr = document.createElement("tr");
    tr.className = row.entry[0];
    if (row.id) tr.id = row.id;
    if (row.run) tr.dataset.run = row.run;
    row.entry.slice(3).forEach(function (cell, i) {
      const td = document.createElement("td");
      td.className = kinds[i];
      td.dataset.value = cell[0];
      // written and escaped by the program that wrote the rows above
      if (cell.length > 1) td.innerHTML = cell[1]; else td.textContent = cell[0];
      tr.append(td);
    });
    row.tr = tr;
    row.labelled = true;
    return labelled(tr, labels);
  }

  function textOf(row) {
    if (row.text === undefined) {
      row.text = (row.tr ? row.tr.textContent : row.values.join(" ")).toLowerCase();
    }
    return row.text;
  }

  function cellsOf(state, row) {
    return function () {
      const named = {};
      state.keys.forEach(function (key, i) { if (key) named[key] = row.values[i] || null; });
      return named;
    };
  }

  // The rows of a very long table are in a file of their own: read it, then go on.
  function whole(state, then) {
    if (!state.src) { then(); return; }
    state.waiting.push(then);
    if (state.waiting.length > 1) return;
    const script = document.createElement("script");
    script.src = state.src;
    script.onload = function () {
      state.rows = state.rows.concat(window.SCALEBOOK_ROWS[state.src].map(fromData));
      delete window.SCALEBOOK_ROWS[state.src];
      state.src = "";
      refresh(state);
      filter.show();
      state.waiting.splice(0).forEach(function (next) { next(); });
    };
    script.onerror = function () {
      state.waiting = [];
      state.where.textContent = "the other rows are in " + state.src + ", which cannot be read";
    };
    document.head.append(script);
  }

  function wholeInSight(state) {
    new IntersectionObserver(function (entries, observer) {
      if (!entries.some(function (entry) { return entry.isIntersecting; })) return;
      observer.disconnect();
      whole(state, function () {});
    }, { rootMargin: "300px" }).observe(state.box);
  }

  // Show the rows that the search and the page's filter leave, a page of them.
  function refresh(state) {
    state.left = state.rows.filter(function (row) {
      return filter.tableKeeps(row.run, cellsOf(state, row)) &&
        (!state.words.length || state.words.every(function (word) { return textOf(row).includes(word); }));
    });
    const last = Math.max(0, Math.ceil(state.left.length / PAGE) - 1);
    state.page = Math.min(state.page, last);
    const from = state.long ? state.page * PAGE : 0;
    const shown = state.long ? state.left.slice(from, from + PAGE) : state.left;
    state.table.tBodies[0].replaceChildren.apply(state.table.tBodies[0], shown.map(function (row) {
      return element(row, state.kinds, state.labels);
    }));
    if (state.pager) {
      const many = state.left.length + (state.src ? state.more : 0);
      state.where.textContent = many
        ? (from + 1) + " to " + (from + shown.length) + " of " + many : "no row";
      state.back.disabled = state.page === 0;
      state.next.disabled = state.page === last && !state.src;
    }
  }

  function sort(state, column) {
    const heading = state.headings[column];
    const numeric = heading.classList.contains("num");
    const now = heading.getAttribute("aria-sort");
    const down = now ? now === "ascending" : numeric;
    const key = function (row) {
      const text = row.values[column];
      return !numeric ? text.toLowerCase() : text === "" ? null : Number(text);
    };
    const keyed = state.rows.map(function (row) { return [key(row), row]; });
    keyed.sort(function (a, b) {
      if (a[0] === b[0]) return 0;
      if (a[0] === null) return 1; // a missing number is last in both directions
      if (b[0] === null) return -1;
      return (a[0] < b[0] ? -1 : 1) * (down ? -1 : 1);
    });
    state.rows = keyed.map(function (pair) { return pair[1]; });
    for (const cell of state.headings) cell.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    state.page = 0;
    refresh(state);
  }

  function csvCell(text) {
    // A text that begins like a formula would be run by a spreadsheet.
    const safe = /^[=+\-@\t\r]/.test(text) && isNaN(Number(text)) ? "'" + text : text;
    return /[",\n\r]/.test(safe) ? '"' + safe.replace(/"/g, '""') + '"' : safe;
  }

  // The rows that are in the selection, all pages of them.
  function csv(state) {
    const kept = state.keys.map(function (key, i) { return i; })
      .filter(function (i) { return state.keys[i]; });
    const lines = [kept.map(function (i) { return state.keys[i]; })];
    for (const row of state.left) {
      // a script of the page may have put another value into a cell since
      const now = row.tr ? Array.from(row.tr.cells, function (cell) { return cell.dataset.value || ""; }) : row.values;
      lines.push(kept.map(function (i) { return csvCell(now[i]); }));
    }
    return lines.map(function (line) { return line.join(","); }).join("\r\n") + "\r\n";
  }

  function download(text, name) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    link.download = name + ".csv";
    link.click();
    setTimeout(function () { URL.revokeObjectURL(link.href); }, 1000);
  }

  function button(text, action, label) {
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = text;
    if (label) made.setAttribute("aria-label", label);
    made.addEventListener("click", action);
    return made;
  }

  function equip(box) {
    const table = box.querySelector("table");
    if (!table || !table.tBodies.length) return;
    const more = box.querySelector("script.sb-rows");
    const headings = Array.from(table.tHead.rows[0].cells);
    const state = {
      box: box, table: table, headings: headings, page: 0, words: [], long: Boolean(more),
      keys: headings.map(function (cell) { return cell.dataset.key; }),
      kinds: headings.map(function (cell) { return cell.className; }),
      labels: headings.map(function (cell) {
        return Array.from(cell.childNodes, function (part) { return part.textContent; }).join(", ");
      }),
      rows: Array.from(table.tBodies[0].rows, fromElement),
    };
    state.src = more && more.dataset.src || "";
    state.more = state.src ? Number(more.dataset.rows) : 0;
    state.anchors = Boolean(more) && more.dataset.anchors === "yes";
    state.waiting = [];
    if (more && !state.src) state.rows = state.rows.concat(JSON.parse(more.textContent).map(fromData));
    state.left = state.rows;
    if (state.rows.length > 1) {
      headings.forEach(function (heading, column) {
        if (!heading.textContent) return;
        const made = button("", function () { whole(state, function () { sort(state, column); }); });
        made.append.apply(made, Array.from(heading.childNodes));
        heading.append(made);
      });
    }
    const name = box.dataset.name;
    const tools = document.createElement("div");
    tools.className = "tools";
    if (state.long) tools.append(pager(state));
    if (state.rows.length > 8) tools.append(searchOf(state));
    if (headings.length > COLUMNS) tools.append(columnsOf(state));
    tools.append(button("CSV", function () { whole(state, function () { download(csv(state), name); }); }, "Download table " + name + " as CSV"));
    box.prepend(tools);
    table.tBodies[0].addEventListener("click", function (event) {
      const row = event.target.closest("tr[data-run]");
      const words = window.getSelection && String(window.getSelection());
      if (row && !words && !event.target.closest("a, button, summary, pre")) filter.pick(row.dataset.run);
    });
    tables.push(state);
    box.scalebook = {
      csv: function () { return csv(state); },
      whole: function (then) { whole(state, then); },
    };
    refresh(state);
    // a filter of the page before acts on rows that are not in sight too
    if (state.src && filter.isActive()) whole(state, function () {}); else if (state.src) wholeInSight(state);
  }

  // The first columns say what a row is and what it reached; the others come when asked for.
  function columnsOf(state) {
    const more = state.headings.length - COLUMNS;
    const made = button("", function () { say(state.box.classList.toggle("is-short")); });
    const say = function (short) {
      made.textContent = short ? "Columns: " + more + " more" : "Columns: fewer";
      made.setAttribute("aria-expanded", short ? "false" : "true");
    };
    state.box.classList.add("is-short");
    say(true);
    return made;
  }

  function pager(state) {
    const made = document.createElement("span");
    made.className = "pager";
    state.pager = made;
    state.where = document.createElement("span");
    const turn = function (by) {
      return function () { whole(state, function () { state.page += by; refresh(state); filter.show(); }); };
    };
    state.back = button("\u2190", turn(-1), "Rows before");
    state.next = button("\u2192", turn(1), "Rows after");
    made.append(state.back, state.where, state.next);
    return made;
  }

  function searchOf(state) {
    const search = document.createElement("input");
    search.type = "search";
    search.placeholder = "Search " + (state.rows.length + state.more) + " rows";
    search.setAttribute("aria-label", "Search the rows of table " + state.box.dataset.name);
    search.addEventListener("input", function () {
      state.words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      state.page = 0;
      whole(state, function () { refresh(state); });
    });
    return search;
  }

  // In the one file each page is a section: the one that the address names is shown.
  const sections = function () { return Array.from(document.querySelectorAll("section.page")); };
  function turnTo() {
    const all = sections();
    if (!all.length) return;
    const hash = decodeURIComponent(location.hash.slice(1));
    const slug = hash.startsWith("page-") ? hash.slice(5) : hash.split("--")[0];
    const shown = all.find(function (one) { return one.dataset.slug === slug; }) ||
      all.find(function (one) { return !one.hidden; }) || all[0];
    const before = all.find(function (one) { return !one.hidden; });
    for (const one of all) one.hidden = one !== shown;
    document.querySelectorAll("header.site nav a").forEach(function (link) {
      if (link.hash === "#" + shown.id) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    });
    const missing = Array.from(shown.querySelectorAll(".sb-chart")).some(function (place) {
      return !drawn.has(place) && !place.classList.contains("is-empty");
    });
    if (missing) draw();
    if (before !== shown && hash === shown.id) window.scrollTo(0, 0);
    else if (hash && document.getElementById(hash)) document.getElementById(hash).scrollIntoView();
  }

  // A menu of the navigation opens without this script; with it, it also closes by itself.
  function closeMenus(besides) {
    document.querySelectorAll("header.site details[open]").forEach(function (menu) {
      if (menu !== besides) menu.open = false;
    });
  }

  function watchMenus() {
    document.addEventListener("click", function (event) {
      const link = event.target.closest("header.site .menu a");
      closeMenus(link ? null : event.target.closest("header.site details"));
    });
    document.addEventListener("keydown", function (event) {
      const menu = document.querySelector("header.site details[open]");
      if (event.key !== "Escape" || !menu) return;
      closeMenus(null);
      menu.querySelector("summary").focus();
    });
  }

  // A link may lead to a row that a filter hides or that is on another page of its table.
  function reveal() {
    const id = decodeURIComponent(location.hash.slice(1));
    if (!id) return;
    const state = tables.find(function (one) {
      return one.rows.some(function (row) { return row.id === id; });
    });
    document.querySelectorAll("tr.is-target").forEach(function (row) { row.classList.remove("is-target"); });
    if (!state) {
      const unread = tables.find(function (one) { return one.src && one.anchors; });
      if (unread) whole(unread, reveal);
      return;
    }
    if (!state.left.some(function (row) { return row.id === id; })) {
      state.words = [];
      const search = state.box.querySelector("input[type=search]");
      if (search) search.value = "";
      filter.clear();
    }
    const place = state.left.findIndex(function (row) { return row.id === id; });
    if (place < 0) return;
    if (state.long) { state.page = Math.floor(place / PAGE); refresh(state); }
    const row = document.getElementById(id);
    row.classList.add("is-target");
    row.scrollIntoView({ block: "center" });
  }

  const NEXT = { auto: "dark", dark: "light", light: "auto" };
  function showTheme(control) {
    const name = root.dataset.theme || "auto";
    control.textContent = "Theme: " + name;
  }

  function start() {
    const content = document.getElementById("content") || document.querySelector("main");
    const specs = content ? Array.from(content.querySelectorAll("script.sb-spec")) : [];
    const about = content && (content.querySelector("tr[data-run]") ||
      specs.some(function (spec) { return spec.textContent.includes('"run_id":'); }));
    if (about) filter.build(placeOfFilter(content));
    document.querySelectorAll(".sb-table").forEach(equip);
    filter.show();
    filter.onChange(function (what) {
      if (what === "filtered") {
        tables.forEach(function (state) { whole(state, function () { refresh(state); }); });
        draw();
        filter.show();
      }
      else document.querySelectorAll(".sb-chart").forEach(filter.mark);
    });
    window.addEventListener("hashchange", function () { turnTo(); reveal(); });
    document.addEventListener("toggle", function (event) {
      if (event.target.open && event.target.matches(".sb-more")) draw(event.target);
    }, true);
    watchMenus();
    // of the one file only the first page is open, and its charts alone are drawn
    sections().forEach(function (one, i) { one.hidden = i > 0; });
    const control = document.getElementById("theme");
    if (control) {
      control.hidden = false;
      showTheme(control);
      control.addEventListener("click", function () {
        const next = NEXT[root.dataset.theme || "auto"];
        if (next === "auto") delete root.dataset.theme; else root.dataset.theme = next;
        try { localStorage.setItem("scalebook-theme", next); } catch (error) { /* not kept */ }
        showTheme(control);
        draw();
      });
    }
    system.addEventListener("change", draw);
    draw();
    turnTo();
    reveal();
  }

  // The filter stands before the first section, so that the title and its facts come first.
  function placeOfFilter(content) {
    if (sections().length) return sections()[0];
    return content.querySelector("h2") && content.querySelector("h2").closest("section") ||
      content.querySelector("h2") || content.firstElementChild;
  }

  window.ScalebookDraw = draw; // for charts that a page makes itself
  const choice = stored();
  if (choice === "dark" || choice === "light") root.dataset.theme = choice;
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();

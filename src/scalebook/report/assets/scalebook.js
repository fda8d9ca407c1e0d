// Draws the charts, sorts the tables, keeps the reader's choice of light or dark.
// Everything here also works from a file: no module, no request.
(function () {
  "use strict";
  const root = document.documentElement;
  const system = window.matchMedia("(prefers-color-scheme: dark)");

  function stored() {
    try { return localStorage.getItem("scalebook-theme"); } catch (error) { return null; }
  }

  function isDark() {
    const classes = document.body.classList;
    if (classes.contains("quarto-dark")) return true;
    if (classes.contains("quarto-light")) return false;
    return root.dataset.theme ? root.dataset.theme === "dark" : system.matches;
  }

  // Charts: the specification is data in the script element behind the chart's place.
  function draw() {
    if (typeof vegaEmbed === "undefined") return;
    const config = window.SCALEBOOK_CHARTS[isDark() ? "dark" : "light"];
    document.querySelectorAll(".sb-chart").forEach(function (place, index) {
      const spec = JSON.parse(place.nextElementSibling.textContent);
      const narrow = place.clientWidth < 560;
      const axisY = Object.assign({}, config.axisY, narrow ? { labelLimit: 150 } : {});
      const legend = Object.assign({}, config.legend, narrow ? { columns: 1, labelLimit: 280 } : {});
      vegaEmbed(place, spec, {
        mode: "vega-lite",
        renderer: "svg",
        actions: { export: true, source: false, compiled: false, editor: false },
        config: Object.assign({}, config, { axisY: axisY, legend: legend }),
        tooltip: { theme: isDark() ? "dark" : "light" },
        downloadFileName: "scalebook-chart-" + (index + 1),
      }).catch(function (error) {
        place.textContent = "This chart could not be drawn: " + error.message;
        place.classList.add("message");
      });
    });
  }

  // Tables: the exact value of a cell is in data-value.
  function value(row, column, numeric) {
    const text = row.cells[column].dataset.value;
    if (!numeric) return text.toLowerCase();
    return text === "" ? null : Number(text);
  }

  function sort(table, column, button) {
    const heading = table.tHead.rows[0].cells[column];
    const numeric = heading.classList.contains("num");
    const now = heading.getAttribute("aria-sort");
    const down = now ? now === "ascending" : numeric;
    const body = table.tBodies[0];
    const rows = Array.from(body.rows);
    rows.sort(function (a, b) {
      const x = value(a, column, numeric), y = value(b, column, numeric);
      if (x === y) return 0;
      if (x === null) return 1; // a missing number is last in both directions
      if (y === null) return -1;
      return (x < y ? -1 : 1) * (down ? -1 : 1);
    });
    body.append.apply(body, rows);
    for (const cell of table.tHead.rows[0].cells) cell.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
  }

  function csvCell(text) {
    // A text that begins like a formula would be run by a spreadsheet.
    const safe = /^[=+\-@\t\r]/.test(text) && isNaN(Number(text)) ? "'" + text : text;
    return /[",\n\r]/.test(safe) ? '"' + safe.replace(/"/g, '""') + '"' : safe;
  }

  function download(table, name) {
    const headings = Array.from(table.tHead.rows[0].cells);
    const kept = headings.map(function (cell, i) { return i; })
      .filter(function (i) { return headings[i].dataset.key; });
    const lines = [kept.map(function (i) { return headings[i].dataset.key; })];
    for (const row of table.tBodies[0].rows) {
      lines.push(kept.map(function (i) { return csvCell(row.cells[i].dataset.value); }));
    }
    const text = lines.map(function (line) { return line.join(","); }).join("\r\n") + "\r\n";
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    link.download = name + ".csv";
    link.click();
    setTimeout(function () { URL.revokeObjectURL(link.href); }, 1000);
  }

  function button(text, action) {
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = text;
    made.addEventListener("click", action);
    return made;
  }

  function equip(box) {
    const table = box.querySelector("table");
    if (!table || !table.tBodies.length) return;
    const rows = table.tBodies[0].rows;
    if (rows.length > 1) {
      Array.from(table.tHead.rows[0].cells).forEach(function (heading, column) {
        const made = button("", function () { sort(table, column); });
        made.append.apply(made, Array.from(heading.childNodes));
        heading.append(made);
      });
    }
    const tools = document.createElement("div");
    tools.className = "tools";
    if (rows.length > 8) {
      const search = document.createElement("input");
      search.type = "search";
      search.placeholder = "Filter " + rows.length + " rows";
      search.setAttribute("aria-label", "Filter the rows of the table");
      search.addEventListener("input", function () {
        const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
        for (const row of rows) {
          const text = row.textContent.toLowerCase();
          row.hidden = !words.every(function (word) { return text.includes(word); });
        }
      });
      tools.append(search);
    }
    tools.append(button("CSV", function () { download(table, box.dataset.name); }));
    box.prepend(tools);
  }

  const NEXT = { auto: "dark", dark: "light", light: "auto" };
  function showTheme(control) {
    const name = root.dataset.theme || "auto";
    control.textContent = "Theme: " + name;
  }

  function start() {
    document.querySelectorAll(".sb-table").forEach(equip);
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
    } else {
      new MutationObserver(draw).observe(document.body, { attributeFilter: ["class"] });
    }
    system.addEventListener("change", draw);
    draw();
  }

  const choice = stored();
  if (choice === "dark" || choice === "light") root.dataset.theme = choice;
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();

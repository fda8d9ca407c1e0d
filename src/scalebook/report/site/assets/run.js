// The page of one run, from the file that holds it: text is text, whatever a record says.
(function () {
  "use strict";
  const TOGETHER = 50; // runs of a file, as run_details.py writes them
  const TITLES = { loss: "Loss", step_seconds: "Step time, s", allocated_gib: "Memory, GiB",
    power_watts: "Power, W per device" };

  function make(kind, text, into, style) {
    const one = document.createElement(kind);
    if (text) one.textContent = text;
    if (style) one.className = style;
    into.append(one);
    return one;
  }

  function pairs(title, rows, into) {
    if (!rows.length) return;
    const part = make("section", "", into);
    make("h2", title, part);
    const list = make("dl", "", part, "sb-facts");
    for (const row of rows) { make("dt", row[0], list); make("dd", row[1], list); }
  }

  function lines(title, rows, into) {
    if (!rows.length) return;
    make("h2", title, into);
    const list = make("ul", "", into, "findings");
    for (const row of rows) { // words and what to type, in turns
      const item = make("li", "", list);
      row.forEach(function (part, i) { if (i % 2) make("code", part, item); else item.append(part); });
    }
  }

  function chart(name, curves, into) {
    const rows = curves.step.map(function (step, i) {
      return { step: step, value: (curves[name] || [])[i], phase: curves.phase[i] };
    }).filter(function (row) { return typeof row.value === "number"; });
    if (rows.length < 2) return; // no curve
    const title = TITLES[name];
    const box = make("div", "", into, "sb-chart");
    box.setAttribute("role", "img");
    box.setAttribute("aria-label", title + " of each step.");
    const spec = document.createElement("script");
    spec.type = "application/json"; // data, which no policy may take for code
    spec.className = "sb-spec";
    spec.textContent = JSON.stringify({
      data: { values: rows }, width: "container", height: 170, mark: { type: "line", point: rows.length < 40 },
      autosize: { type: "fit-x", contains: "padding" },
      encoding: { x: { field: "step", type: "quantitative", title: "step", axis: { format: "d", tickMinStep: 1 } },
        y: { field: "value", type: "quantitative", title: title, scale: { zero: false } },
        tooltip: [{ field: "step" }, { field: "value", format: ".5~g" }, { field: "phase" }] },
    });
    into.append(spec);
  }

  function show(run, number, place) {
    place.replaceChildren();
    make("h1", "Run " + number + ": " + run.title, place);
    make("p", run.subtitle, place, "subtitle");
    const about = make("p", run.status + (run.reason ? ": " + run.reason : ""), place);
    const row = make("a", "In the table of all runs", about);
    about.insertBefore(document.createTextNode(run.reason ? " " : ". "), row);
    row.href = "throughput.html#" + run.anchor;
    pairs("What it reached", run.results, place);
    pairs("Where the time of a step went", run.parts.map(function (part) {
      return [part[0], (100 * part[1]).toFixed(1) + "\u00a0%"];
    }), place);
    lines("Why, and what to try", run.causes, place);
    if (run.curves.step && run.curves.step.length > 1) {
      make("h2", "Step by step", place);
      Object.keys(TITLES).forEach(function (name) { chart(name, run.curves, place); });
    }
    pairs("Settings", run.settings, place);
    lines("Notes", run.otherwise, place);
    if (run.log.length) { make("h2", "End of the log", place); make("pre", run.log.join("\n"), place, "sb-log"); }
    make("h2", "Repeat it", place);
    make("p", "This prints the command, the commit and the variables, and what differs on this machine:", place);
    make("pre", "scalebook reproduce " + run.id, place, "sb-log");
    document.title = "Run " + number + " \u00b7 Scalebook";
    window.ScalebookDraw();
  }

  function load() {
    const place = document.getElementById("sb-run");
    const wanted = decodeURIComponent(location.hash.slice(1));
    const index = window.SCALEBOOK_RUNS.runs.findIndex(function (run) { return run[0] === wanted; });
    if (index < 0) { place.textContent = "No run of this report has the id \u201c" + wanted + "\u201d."; return; }
    const file = Math.floor(index / TOGETHER);
    const ready = function () { show(window.SCALEBOOK_DETAILS[file][index % TOGETHER], index + 1, place); };
    if ((window.SCALEBOOK_DETAILS || {})[file]) { ready(); return; }
    const script = document.createElement("script");
    script.src = "data/run/" + file + ".js";
    script.onload = ready;
    script.onerror = function () { place.textContent = script.src + " cannot be read."; };
    document.head.append(script);
  }

  addEventListener("hashchange", load);
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", load); else load();
})();

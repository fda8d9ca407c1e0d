// Answers of the cost page from the reader's inputs. The formulas come from the page's data.
(function () {
  "use strict";
  const SCALES = { "": 1, k: 1e3, m: 1e6, b: 1e9, t: 1e12,
    thousand: 1e3, million: 1e6, billion: 1e9, trillion: 1e12 };

  function numeral(text) {
    const match = /^\s*\$?([0-9][0-9,]*\.?[0-9]*(?:e[+-]?[0-9]+)?)\s*([a-z]*)\s*(%?)\s*$/i.exec(text);
    const scale = match ? SCALES[match[2].toLowerCase()] : undefined;
    if (scale === undefined) return NaN;
    return Number(match[1].replace(/,/g, "")) * scale / (match[3] ? 100 : 1);
  }

  // A number or a range, "2.1..2.6", as [low, high]; null where it is neither. A third number is
  // the estimate that the ends lie about, where that is not their middle.
  function read(text) {
    const ends = text.split("..").map(numeral);
    const range = [ends[0], ends[ends.length - 1]];
    return ends.length <= 2 && range.every(Number.isFinite) && range[0] <= range[1] ? range : null;
  }

  function write(range) {
    const ends = range.slice(0, 2).map(function (end) { return String(Number(end.toPrecision(6))); });
    return range[0] === range[1] ? ends[0] : ends.join("..");
  }

  function allowed(name, range) {
    if (range === null) return false;
    return name === "pue" ? range[0] >= 1
      : name === "preemption_overhead" ? range[0] >= 0 : range[0] > 0;
  }

  // Four digits, as the page without this script writes them.
  function number(value) {
    if (value === 0) return "0";
    const rounded = Number(value.toPrecision(4));
    if (Math.abs(rounded) < 1e-4) {
      return rounded.toExponential(3).replace(/e([+-])([0-9])$/, "e$10$2");
    }
    const decimals = Math.max(0, 3 - Math.floor(Math.log10(Math.abs(rounded))));
    return rounded.toLocaleString("en-US",
      { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
  }

  function estimate(range) {
    return range.length > 2 ? range[2] : (range[0] + range[1]) / 2;
  }

  function show(range) {
    const middle = number(estimate(range));
    if (range[0] === range[1]) return middle;
    return middle + " (" + number(range[0]) + " to " + number(range[1]) + ")";
  }

  function factor(name, inputs) {
    if (!name.startsWith("1+")) return inputs[name];
    return inputs[name.slice(2)].map(function (end) { return 1 + end; });
  }

  // Each input enters once and is not negative, so the ends of the answer are exact.
  function product(answer, inputs) {
    let range = [answer.constant, answer.constant, answer.constant];
    for (const name of answer.over) {
      const by = factor(name, inputs);
      range = [range[0] * by[0], range[1] * by[1], range[2] * estimate(by)];
    }
    for (const name of answer.under) {
      const by = factor(name, inputs);
      range = [range[0] / by[1], range[1] / by[0], range[2] / estimate(by)];
    }
    return range;
  }

  function start(box) {
    const data = JSON.parse(box.querySelector("script[type='application/json']").textContent);
    const fields = Array.from(box.querySelectorAll("input[data-input]"));
    const labels = {}; // without the example in brackets
    for (const field of fields) labels[field.dataset.input] = field.parentNode.firstChild.data.split(" (")[0];
    const exact = {}; // of a run or stated: a field shows six digits of it

    function calculate() {
      const inputs = {};
      for (const field of fields) {
        const name = field.dataset.input, empty = field.value.trim() === "";
        const range = exact[name] || (empty ? null : read(field.value));
        const fits = allowed(name, range);
        field.setAttribute("aria-invalid", !empty && !fits ? "true" : "false");
        if (fits) inputs[name] = range;
      }
      for (const answer of data.answers) {
        const row = box.querySelector("tr[data-answer='" + answer.name + "']");
        const missing = answer.over.concat(answer.under)
          .map(function (name) { return name.replace("1+", ""); })
          .filter(function (name) { return !(name in inputs); })
          .map(function (name) { return labels[name]; });
        row.cells[1].textContent = missing.length ? "–" : show(product(answer, inputs));
        row.cells[4].textContent = missing.length ? "needs: " + missing.join("; ") : "";
        for (const cell of [row.cells[1], row.cells[4]]) cell.dataset.value = cell.textContent;
      }
    }

    // What the run before brought goes with it; what the reader typed stays.
    function choose(select) {
      const before = select.dataset.before;
      const inputs = select.value === "" ? {} : data.runs[select.value];
      for (const field of fields) {
        const name = field.dataset.input;
        if (name.startsWith("other_") !== (before !== "")) continue;
        const range = inputs[name.slice(before.length)];
        if (range) field.value = write(range);
        else if (exact[name]) field.value = "";
        delete exact[name];
        if (range) exact[name] = range;
      }
      select.nextElementSibling.textContent = select.value && select.selectedOptions[0].textContent;
      calculate();
    }

    for (const field of fields) {
      field.addEventListener("input", function () {
        delete exact[field.dataset.input];
        calculate();
      });
    }
    const selects = Array.from(box.querySelectorAll("select[data-before]"));
    for (const select of selects) {
      select.addEventListener("change", function () { choose(select); });
    }
    selects.forEach(choose);
    calculate();
  }

  // the comparison of two sides has the same formula of what a price buys
  window.ScalebookCost = { read: read, allowed: allowed, product: product, show: show };

  function all() { document.querySelectorAll(".sb-cost").forEach(start); }
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", all);
  else all();
})();

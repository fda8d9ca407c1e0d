// Shows the two sides that a reader chooses, and follows the prices that they type. Every number
// of a panel is in the page; what a price buys has the formula of the cost page.
(function () {
  "use strict";
  const cost = window.ScalebookCost;

  function start(box) {
    const formula = JSON.parse(box.querySelector("script[type='application/json']").textContent);
    const panels = Array.from(box.querySelectorAll(".sb-panel"));
    const menus = {};
    for (const menu of box.querySelectorAll("select[data-choice]")) menus[menu.dataset.choice] = menu;
    const fields = Array.from(box.querySelectorAll("input[data-price]"));
    const none = box.querySelector("[data-none]");

    function of(by) { return panels.filter(function (panel) { return panel.dataset.by === by; }); }

    // The sides of the kind that is chosen; at first those of its first panel.
    function fill() {
      const own = of(menus.by.value), sides = new Set();
      for (const panel of own) sides.add(panel.dataset.a).add(panel.dataset.b);
      for (const side of ["a", "b"]) {
        menus[side].replaceChildren.apply(menus[side], Array.from(sides, function (name) {
          return new Option(name, name);
        }));
        menus[side].value = own[0].dataset[side];
      }
    }

    function show() {
      const a = menus.a.value, b = menus.b.value;
      for (const panel of panels) {
        const sides = panel.dataset;
        panel.hidden = sides.by !== menus.by.value ||
          !(sides.a === a && sides.b === b || sides.a === b && sides.b === a);
      }
      none.hidden = a !== b;
    }

    function prices() {
      const found = {};
      for (const field of fields) {
        const range = cost.read(field.value), fits = cost.allowed("price_per_gpu_hour", range);
        field.setAttribute("aria-invalid", field.value.trim() !== "" && !fits ? "true" : "false");
        if (fits) found[field.dataset.price] = range;
      }
      return found;
    }

    function put(place, text) {
      place.textContent = text;
      place.closest("td").dataset.value = text;
    }

    function calculate() {
      const found = prices();
      for (const place of box.querySelectorAll("[data-inputs]")) {
        const price = found[place.dataset.platform];
        const inputs = Object.assign(JSON.parse(place.dataset.inputs), { price_per_gpu_hour: price });
        const whole = formula.over.concat(formula.under).every(function (name) { return inputs[name]; });
        put(place, whole ? cost.show(cost.product(formula, inputs)) : "–");
      }
      for (const place of box.querySelectorAll("[data-ratio]")) {
        const own = JSON.parse(place.dataset.platforms).map(function (name) { return found[name]; });
        const ratio = JSON.parse(place.dataset.ratio);
        put(place, own[0] && own[1] ? over(ratio, own[0], own[1]) : "–");
      }
      for (const place of box.querySelectorAll("[data-inputs], [data-ratio]")) {
        const cell = place.closest("td"), head = cell.closest("table").tHead.rows[0];
        cell.hidden = head.cells[cell.cellIndex].hidden = !Object.keys(found).length;
      }
    }

    // First over second: the dearer side trains fewer tokens for the same money.
    function over(ratio, first, second) {
      const middle = function (range) { return (range[0] + range[1]) / 2; };
      const ends = [ratio[0] * second[0] / first[1], ratio[2] * second[1] / first[0]];
      return (ratio[1] * middle(second) / middle(first)).toFixed(3) +
        " (" + ends[0].toFixed(3) + " to " + ends[1].toFixed(3) + ")";
    }

    box.querySelector(".sb-inputs").hidden = false;
    menus.by.addEventListener("change", function () { fill(); show(); });
    for (const side of ["a", "b"]) menus[side].addEventListener("change", show);
    for (const field of fields) field.addEventListener("input", calculate);
    fill();
    show();
    calculate();
  }

  function all() { document.querySelectorAll(".sb-versus").forEach(start); }
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", all);
  else all();
})();

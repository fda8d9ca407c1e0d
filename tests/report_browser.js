// Runs inside each page under test and posts what it saw to the page around it.
setTimeout(async function () {
  const wait = ms => new Promise(done => setTimeout(done, ms));
  const all = selector => [...document.querySelectorAll(selector)];
  const charts = () => all(".sb-chart").filter(place => !place.classList.contains("is-empty"));
  const drawn = () => charts().filter(place => place.querySelector("svg.marks")).length;
  const overflow = () => document.documentElement.scrollWidth - document.documentElement.clientWidth;
  const runOf = node => node.__data__ && node.__data__.datum && node.__data__.datum.run_id;
  const marks = () => all("svg.marks .role-mark path").filter(runOf);
  // A long table shows its first rows and holds the later ones as data, a very long one in a file.
  const later = box => {
    const more = box.querySelector("script.sb-rows");
    return !more ? 0 : more.dataset.src ? Number(more.dataset.rows) : JSON.parse(more.textContent).length;
  };
  const rows = () => all("tbody tr[data-run]");
  const out = {page: location.pathname.split("/").pop(), width: innerWidth, seen: window.seen};
  try {
    for (let turn = 0; turn < 100 && drawn() < charts().length; turn++) await wait(200);
    out.height = document.documentElement.scrollHeight;
    // Words that reach beyond the window, outside of what scrolls or is there to be heard only.
    out.beyond = all("main *").filter(one => [...one.childNodes].some(part => part.nodeType === 3 && part.data.trim()) &&
      one.checkVisibility() && !one.closest("svg, pre, select, thead, .sb-scroll, .formula, main:has(.sb-front) > h1")).filter(one => {
        const box = one.getBoundingClientRect();
        return box.width > 1 && (box.left < -1 || box.right > document.documentElement.clientWidth + 1);
      }).map(one => one.textContent.trim().slice(0, 60));
    all("details.sb-more").forEach(part => { part.open = true; });
    await wait(300);
    for (let turn = 0; turn < 100 && drawn() < charts().length; turn++) await wait(200);
    out.charts = charts().length; out.drawn = drawn(); out.overflow = overflow();
    out.marks = all("svg.marks .role-mark path").length;
    // Labels of one axis that read alike, and texts that reach beyond their chart.
    out.alike = []; out.cut = []; out.covered = [];
    for (const place of charts()) {
      const edge = place.getBoundingClientRect();
      for (const axis of place.querySelectorAll("svg.marks .role-axis")) {
        const labels = [...axis.querySelectorAll(".role-axis-label text")].map(one => one.textContent).filter(Boolean);
        const names = [...axis.querySelectorAll(".role-axis-label text")].filter(one => one.getAttribute("opacity") !== "0");
        const meet = (a, b) => a.width && b.width && a.left < b.right + 2 && b.left < a.right + 2 && a.top < b.bottom - 3 && b.top < a.bottom - 3;
        out.covered.push(...names.filter((one, i) => one.textContent.includes("…") || i &&
          meet(names[i - 1].getBoundingClientRect(), one.getBoundingClientRect())).map(one => one.textContent));
        out.alike.push(...labels.filter((label, i) => labels.indexOf(label) < i));
      }
      const legend = [...place.querySelectorAll("svg.marks .role-legend-label text")];
      for (const own of place.querySelectorAll("svg.marks .role-legend")) {
        const texts = [...own.querySelectorAll(".role-legend-label text")].map(one => one.textContent);
        out.alike.push(...texts.filter((text, i) => texts.indexOf(text) < i));
      }
      out.covered.push(...legend.filter(one => one.textContent.includes("…")).map(one => one.textContent));
      out.cut.push(...[...place.querySelectorAll("svg.marks .role-axis text"), ...legend].filter(one => {
        const box = one.getBoundingClientRect();
        return box.width && (box.left < edge.left - 1 || box.right > edge.right + 1);
      }).map(one => one.textContent));
    }
    await Promise.all(all(".sb-table").map(box => new Promise(done => box.scalebook.whole(done))));
    out.csv = all(".sb-table").map(box => [
      ([...box.querySelectorAll(".tools button")].find(b => b.textContent === "CSV") || {}).textContent, box.dataset.name,
      box.scalebook.csv().split("\r\n").length - 2, 
      box.querySelectorAll("tbody tr").length + later(box)]);
    out.bare = all("table:not(.sb-cells)").filter(table => !table.closest(".sb-table")).length;
    const heading = document.querySelector("th[data-key=tokens_per_second] button");
    if (heading) {
      heading.click();
      const cell = heading.parentElement;
      out.sorted = [...cell.closest("table").tBodies[0].rows]
        .map(row => row.cells[cell.cellIndex].dataset.value).filter(Boolean).map(Number);
    }
    const mark = all(".mark-symbol.role-mark path, .mark-rect.role-mark path").find(runOf);
    if (mark) {
      const box = mark.getBoundingClientRect();
      const at = {bubbles: true, clientX: box.x + box.width / 2, clientY: box.y + box.height / 2};
      for (const name of ["pointerover", "pointermove", "mousemove"])
        mark.dispatchEvent(new PointerEvent(name, at));
      await wait(300);
      const tip = document.getElementById("vg-tooltip-element");
      out.tooltip = [tip ? tip.textContent : "", runOf(mark)];
      mark.dispatchEvent(new PointerEvent("click", at));
      await wait(200);
      out.picked = [runOf(mark), all("svg.marks .role-mark path:not(.sb-dim)").map(runOf)
        .filter(Boolean).length, all(".sb-dim").map(runOf).filter(run => run === runOf(mark)).length,
        all("tr.is-picked").map(row => row.dataset.run)];
      document.dispatchEvent(new KeyboardEvent("keydown", {key: "Escape"}));
    }
    const menu = document.querySelector("select[name=sb-platform]");
    if (menu) {
      const before = [marks().length, rows().length];
      menu.value = "CPU";
      menu.dispatchEvent(new Event("change"));
      await wait(700);
      out.filtered = {before: before, marks: marks().map(runOf), rows: rows().map(r => r.dataset.run)};
      menu.value = "";
      menu.dispatchEvent(new Event("change"));
      await wait(700);
      out.restored = [marks().length, rows().length];
    }
    const found = {preload: false, resultTypes: ["violations"], selectors: false};
    const serious = async rules => typeof axe === "undefined" || innerWidth < 1000 || location.protocol !== "file:" ? [] : (await axe.run({...found, ...rules})).violations
      .filter(one => ["serious", "critical"].includes(one.impact))
      .map(one => one.id + ": " + one.nodes.slice(0, 3).map(node => node.html.slice(0, 160)).join(" | "));
    document.documentElement.dataset.theme = "light";
    out.light = await serious();
    document.documentElement.dataset.theme = "auto";
    document.getElementById("theme").click();
    await wait(700);
    for (let turn = 0; turn < 100 && drawn() < charts().length; turn++) await wait(200);
    out.dark = [getComputedStyle(document.body).backgroundColor, drawn() + "/" + charts().length,
      overflow(), document.documentElement.dataset.theme];
    // Only colours differ between the themes.
    out.darkFindings = await serious({runOnly: ["color-contrast", "link-in-text-block"]});
    out.links = performance.getEntriesByType("resource").map(entry => entry.name);
  } catch (error) { window.seen.push("test: " + error.stack); }
  parent.postMessage(out, "*");
}, 500);

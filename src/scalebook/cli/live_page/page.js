// Shows /data. Every text goes into the page as text, never as markup.
"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const PERIOD = 2000;
  const byId = id => document.getElementById(id);

  const element = (name, text, parts = []) => {
    const made = document.createElement(name);
    if (text !== undefined && text !== null) made.textContent = text;
    made.append(...parts);
    return made;
  };

  const drawn = (name, values, text) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(values)) made.setAttribute(key, String(value));
    if (text !== undefined) made.textContent = text;
    return made;
  };

  const number = (value, digits = 0) =>
    value === null ? "-" : value.toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: digits });

  const duration = seconds => {
    if (seconds === null) return "-";
    const whole = Math.max(0, Math.round(seconds));
    const two = value => String(value).padStart(2, "0");
    if (whole < 60) return `${whole} s`;
    if (whole < 3600) return `${Math.floor(whole / 60)}:${two(whole % 60)} min`;
    return `${Math.floor(whole / 3600)}:${two(Math.floor(whole % 3600 / 60))} h`;
  };

  const interval = (value, low, high, digits, scale, unit) => {
    if (value === null) return "-";
    const ends = low === null || high === null ? "" : ` (${number(low * scale, digits)} to ${number(high * scale, digits)})`;
    return `${number(value * scale, digits)}${unit}${ends}`;
  };

  const short = value => Number(value.toPrecision(4)).toString();

  // A line of one quantity over the steps; what is missing interrupts it.
  const curve = (title, points) => {
    const known = points.filter(([, y]) => y !== null);
    const holder = element("div", null, [element("h3", title)]);
    if (known.length === 0) {
      holder.append(element("p", "no value yet"));
      return holder;
    }
    const [width, height, left, bottom, top] = [420, 180, 56, 24, 10];
    const xs = known.map(([x]) => x), ys = known.map(([, y]) => y);
    const [x0, x1, y0, y1] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
    const x = value => left + (width - left - 10) * (x1 > x0 ? (value - x0) / (x1 - x0) : 0.5);
    const y = value => top + (height - top - bottom) * (y1 > y0 ? (y1 - value) / (y1 - y0) : 0.5);
    const label = `${title}: from ${short(ys[0])} at step ${xs[0]} to ${short(ys[ys.length - 1])} at step ${xs[xs.length - 1]}`;
    const picture = drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
    let path = "", pen = "M";
    for (const [step, value] of points) {
      if (value === null) { pen = "M"; continue; }
      path += `${pen}${x(step).toFixed(1)} ${y(value).toFixed(1)}`;
      pen = "L";
    }
    picture.append(
      drawn("line", { x1: left, x2: width - 10, y1: height - bottom, y2: height - bottom }),
      drawn("line", { x1: left, x2: left, y1: top, y2: height - bottom }),
      drawn("path", { d: path }),
      drawn("circle", { cx: x(xs[xs.length - 1]), cy: y(ys[ys.length - 1]), r: 3 }),
      drawn("text", { x: left - 5, y: y(y1) + 4, "text-anchor": "end" }, short(y1)),
      drawn("text", { x: left, y: height - 6 }, `step ${x0}`),
      drawn("text", { x: width - 10, y: height - 6, "text-anchor": "end" }, String(x1)));
    if (y1 > y0) picture.append(drawn("text", { x: left - 5, y: y(y0) + 4, "text-anchor": "end" }, short(y0)));
    holder.append(picture);
    return holder;
  };

  const numbers = run => {
    const rows = [
      ["step", `${run.step} of ${run.steps_asked === null ? "?" : run.steps_asked}`],
      ["tokens/s per GPU", interval(run.tokens_per_second_per_gpu, run.tokens_per_second_per_gpu_low, run.tokens_per_second_per_gpu_high, 0, 1, "")],
      ["MFU", interval(run.mfu, run.mfu_low, run.mfu_high, 1, 100, " %")],
      ["loss", number(run.loss, 4)],
      ["memory", run.memory_gib === null ? "-" : `${number(run.memory_gib, 1)} GiB`],
      ["power per GPU", run.power_watts === null ? "-" : `${number(run.power_watts)} W`],
      ["time so far", duration(run.seconds)],
      ["time left", duration(run.seconds_left)],
    ];
    const list = element("dl");
    list.className = "numbers";
    for (const [name, value] of rows) list.append(element("div", null, [element("dt", name), element("dd", value)]));
    return list;
  };

  const shown = run => {
    const parts = [element("h2", run.label), element("p", `${run.run_id}: ${run.state === run.detail ? run.state : `${run.state}, ${run.detail}`}`)];
    parts[1].className = "note";
    if (run.state === "waiting") return element("article", null, parts);
    parts.push(numbers(run));
    for (const reason of run.step > 0 ? [run.interval_reason, run.mfu_reason] : []) {
      if (!reason) continue;
      const note = element("p", reason);
      note.className = "note";
      parts.push(note);
    }
    const curves = element("div", null, [
      curve("loss", run.curve.map(([step, loss]) => [step, loss])),
      // The first step compiles and would flatten all others.
      curve("step time (s)", run.curve.slice(run.curve.length > 2 ? 1 : 0).map(([step, , seconds]) => [step, seconds])),
    ]);
    curves.className = "curves";
    const log = element("pre", run.log.join("\n"));
    log.tabIndex = 0;
    log.setAttribute("aria-label", "Last lines of the log");
    parts.push(curves, element("h3", "Last lines of the log"), log);
    return element("article", null, parts);
  };

  const plan = data => {
    const found = data.plan;
    byId("bar").hidden = found === null;
    if (found === null) {
      byId("plan").textContent = data.running.length ? "" : "No run trains or waits.";
      return;
    }
    const failed = found.failed ? `, ${found.failed} failed` : "";
    const left = data.plan_seconds_left === null ? "" : `; about ${duration(data.plan_seconds_left)} left`;
    const name = found.name ? `Plan ${found.name}` : "Plan";
    byId("plan").textContent = `${name}: ${found.done} done, ${found.running} running, ${found.to_do} to do${failed}, of ${found.total}${left}`;
    byId("bar").max = Math.max(found.total, 1);
    byId("bar").value = found.done + found.failed;
  };

  const ended = run => {
    const what = element("td", null, [element("div", run.label), element("div", run.run_id)]);
    what.lastChild.className = "note";
    const status = element("td", run.reason ? `${run.status}: ${run.reason}` : run.status);
    return element("tr", null, [
      what, status,
      element("td", number(run.tokens_per_second_per_gpu)),
      element("td", run.mfu === null ? "-" : `${number(100 * run.mfu, 1)} %`),
      element("td", duration(run.seconds).replace(" ", "\u00a0")),
    ]);
  };

  const refresh = async () => {
    try {
      const answer = await fetch("data", { cache: "no-store" });
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      const data = await answer.json();
      const places = [...document.querySelectorAll("pre")].map(log => log.scrollHeight - log.scrollTop - log.clientHeight < 20 ? null : log.scrollTop);
      plan(data);
      byId("running").replaceChildren(...data.running.map(shown));
      byId("ended").replaceChildren(...data.ended.map(ended));
      document.querySelectorAll("pre").forEach((log, at) => {
        log.scrollTop = places[at] === undefined || places[at] === null ? log.scrollHeight : places[at];
      });
      byId("state").textContent = `as of ${data.time}`;
    } catch (error) {
      byId("state").textContent = "The server does not answer; the numbers below are old.";
    }
    setTimeout(refresh, PERIOD);
  };
  refresh();
})();

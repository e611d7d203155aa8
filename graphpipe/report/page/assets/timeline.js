// Fills the timeline's heatmap for the times in sight: a cell per pixel column of a row, coloured by what takes most of
// it. The heatmap's rows are those of `extra.rows` with an empty one in every gap between devices.
const GraphPipeTimeline = (() => {
  "use strict";
  const MOST_CELLS = 600000, MOST_MARKS = 1200;

  // Return the edges of the heatmap's rows, and at which heatmap row each row of the timeline stands.
  function layRows(rows) {
    const edges = [0], at = [];
    for (const row of rows) {
      if (row.from > edges.at(-1) + 1e-6) edges.push(row.from);
      at.push(edges.length - 1);
      edges.push(row.to);
    }
    return { edges, at };
  }

  // Return what a cell says: once per span, however many cells it has.
  function words(extra, n) {
    const c = extra.columns, row = extra.rows[c.row[n]], length = c.end[n] - c.start[n];
    const what = extra.words[c.code[n]];
    const lines = [`<b>${row.device}</b> ${row.source}`];
    if (c.stage[n] < 0) lines.push(what);
    else {
      const micro = c.micro_batch[n] < 0 ? "" : `, micro-batch ${c.micro_batch[n]}`;
      lines.push(`<b>${what}</b> of ${extra.stages[c.stage[n]]}${micro}`);
    }
    if (c.version[n] >= 0) lines.push(weights(c.version[n], c.ahead[n]));
    const first = c.first_sample[n], count = c.samples[n];
    if (count) lines.push(`${count} samples: ${first} to ${first + count - 1}`);
    if (c.peer[n] >= 0) lines.push(`with ${extra.devices[c.peer[n]]}, ${c.bytes[n].toLocaleString("en")} bytes`);
    lines.push(`${seconds(length)}, from ${seconds(c.start[n])} to ${seconds(c.end[n])}`);
    return `${lines.join("<br>")}<extra></extra>`;
  }

  // Return which weights a task reads. A version is the number of updates that made it.
  function weights(version, ahead) {
    const updates = `${Math.abs(ahead)} update${Math.abs(ahead) === 1 ? "" : "s"}`;
    if (ahead > 0) return `reads version ${version} of the weights, predicted ${updates} ahead`;
    if (ahead < 0) return `reads version ${version + ahead} of the weights, reconstructed from version ${version}`;
    return `reads version ${version} of the weights`;
  }

  function seconds(s) {
    const [scale, unit] = s >= 1 || s === 0 ? [1, "s"] : s >= 1e-3 ? [1e-3, "ms"] : [1e-6, "us"];
    return `${(s / scale).toPrecision(4)} ${unit}`;
  }

  // Return z, text and marks for the times from `low` to `high` in `count` columns.
  function raster(extra, places, low, high, count) {
    const c = extra.columns, rows = places.edges.length - 1, scale = count / (high - low);
    const share = new Float32Array(rows * count), owner = new Int32Array(rows * count).fill(-1);
    const wide = [];
    for (let n = 0; n < c.row.length; n++) {
      const from = Math.max(0, (c.start[n] - low) * scale), to = Math.min(count, (c.end[n] - low) * scale);
      if (!(to > from)) continue;
      const base = places.at[c.row[n]] * count, last = Math.min(count, Math.ceil(to));
      for (let x = Math.floor(from); x < last; x++) {
        const part = Math.min(to, x + 1) - Math.max(from, x);
        if (part > share[base + x]) { share[base + x] = part; owner[base + x] = n; }
      }
      // A thin line between two tasks of one colour.
      if (to - from > 5 && c.stage[n] >= 0 && to < count) owner[base + Math.ceil(to) - 1] = -1;
      if (to - from > 1 && c.micro_batch[n] >= 0 && !extra.rows[c.row[n]].transfers) wide.push([n, from, to]);
    }
    const z = [], text = [], said = new Map();
    for (let r = 0; r < rows; r++) {
      const line = Array.from(owner.subarray(r * count, (r + 1) * count));
      z.push(line.map((n) => (n < 0 ? null : c.code[n])));
      text.push(line.map((n) => {
        if (n < 0) return "";
        if (!said.has(n)) said.set(n, words(extra, n));
        return said.get(n);
      }));
    }
    return { z, text, wide };
  }

  // Return the trace that writes micro-batch numbers into the tasks, if they are wide enough and not too many.
  function marks(extra, places, wide, low, step, pixels) {
    const c = extra.columns;
    const digits = `${Math.max(0, ...new Set(c.micro_batch))}`.length;
    const shown = wide.filter(([n, from, to]) => (to - from) * pixels >= 7 * digits + 2);
    const version = (n) => (c.version[n] < 0 ? "" : ` v${c.version[n] + c.ahead[n]}`);
    const roomy = ([n, from, to]) => (to - from) * pixels >= 7 * (digits + version(n).length);
    const some = shown.length > MOST_MARKS ? [] : shown;
    const middle = (n) => (extra.rows[c.row[n]].from + extra.rows[c.row[n]].to) / 2;
    return {
      x: some.map(([, from, to]) => low + (step * (from + to)) / 2),
      y: some.map(([n]) => middle(n)),
      text: some.map((it) => `${c.micro_batch[it[0]]}${roomy(it) ? version(it[0]) : ""}`),
      textfont: { size: 10, color: some.map(([n]) => extra.ink[c.code[n]]) },
    };
  }

  function fill(element, figure) {
    const layout = element._fullLayout, { extra, places } = figure;
    const [low, high] = layout.xaxis.range.map(Number), width = Math.max(100, layout._size.w);
    const count = Math.round(Math.min(width, MOST_CELLS / places.edges.length));
    const step = (high - low) / count;
    const { z, text, wide } = raster(extra, places, low, high, count);
    const x = Array.from({ length: count + 1 }, (_, n) => low + n * step);
    Object.assign(figure.data[0], { x, y: places.edges, z, text });
    Object.assign(figure.data[1], marks(extra, places, wide, low, step, width / count));
    figure.filled = `${low} ${high} ${width}`;
  }

  // Zoom and move by buttons and, when the figure has the focus, by keys.
  function move(element, figure, what) {
    const [low, high] = element._fullLayout.xaxis.range.map(Number), span = high - low, whole = figure.extra.seconds;
    const by = { in: [0.25, -0.25], out: [-0.5, 0.5], earlier: [-0.4, -0.4], later: [0.4, 0.4] }[what];
    let range = by ? [low + by[0] * span, high + by[1] * span] : [0, whole];
    const length = Math.min(whole, range[1] - range[0]);
    const from = Math.min(Math.max(0, range[0]), whole - length);
    range = [from, from + length];
    return Plotly.relayout(element, { "xaxis.range": range });
  }

  function listen(element, figure) {
    const keys = { "+": "in", "=": "in", "-": "out", ArrowLeft: "earlier", ArrowRight: "later", 0: "all" };
    element.parentElement.addEventListener("keydown", (event) => {
      if (!(event.key in keys) || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      move(element, figure, keys[event.key]);
    });
    for (const button of element.closest("section").querySelectorAll("button[data-zoom]")) {
      button.addEventListener("click", () => move(element, figure, button.dataset.zoom));
    }
    element.on("plotly_relayout", async () => {
      const layout = element._fullLayout, [low, high] = layout.xaxis.range.map(Number);
      if (figure.filled === `${low} ${high} ${Math.max(100, layout._size.w)}`) return;
      fill(element, figure);
      await Plotly.react(element, figure.data, { ...element.layout }, figure.settings);
      element.dataset.fills = Number(element.dataset.fills ?? 0) + 1;
    });
  }

  // Draw the frame first: only then is it known how many pixels there are to fill.
  async function show(element, figure, layout, settings) {
    figure.places ??= layRows(figure.extra.rows);
    figure.settings = settings;
    await Plotly.react(element, figure.data, layout, settings);
    fill(element, figure);
    await Plotly.react(element, figure.data, { ...layout }, settings);
    if (!figure.drawn) listen(element, figure);
  }

  return { show };
})();

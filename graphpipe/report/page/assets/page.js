// Shows the figures: each when it comes near the window, in the page's colours, and again when these change.
(() => {
  "use strict";
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const touch = window.matchMedia("(pointer: coarse)");
  const settings = { responsive: true, displaylogo: false, displayModeBar: false, doubleClick: "reset+autosize" };
  const figures = new Map();

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  const figureNames = (data) => data.filter((trace) => trace.name).length;

  // The parts of a layout that follow the page.
  function themed(layout, data) {
    const ink = colour("ink"), soft = colour("soft"), line = colour("line"), panel = colour("panel");
    const whole = structuredClone(layout);
    whole.paper_bgcolor = whole.plot_bgcolor = "rgba(0,0,0,0)";
    whole.font = { color: ink, size: 12, family: "system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif" };
    whole.margin = { l: 50, r: 12, t: 12, b: 44, ...whole.margin };
    whole.hoverlabel = { bgcolor: panel, bordercolor: soft, font: { color: ink, size: 12 }, align: "left" };
    whole.legend = { orientation: "h", y: 1, yanchor: "bottom", x: 0, ...whole.legend };
    for (const axis of ["xaxis", "yaxis"]) {
      whole[axis] = { gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true, ...whole[axis] };
    }
    for (const one of whole.annotations ?? []) {
      if (one.showarrow) one.arrowcolor = soft;
      if (one.name === "label") one.bgcolor = panel;
    }
    // In a narrow window a long legend would leave no room for the figure.
    if (window.innerWidth < 600 && figureNames(data) > 6) whole.showlegend = false;
    if (window.innerWidth < 600) wrapRows(whole.yaxis, layout.height);
    // A finger on a figure scrolls the page.
    if (touch.matches) whole.dragmode = false;
    return whole;
  }

  // In a narrow window, "predicted" and "measured" stand below the device, where rows are high enough for two lines.
  function wrapRows(axis, height) {
    if (!axis.ticktext || height / axis.ticktext.length < 34) return;
    axis.ticktext = axis.ticktext.map((text) => text.replace(/ (predicted|rehearsed|measured)$/, "<br>$1"));
  }

  // The library that draws is in the page as gzip in base64.
  async function unpack() {
    const packed = atob(document.getElementById("plotly-packed").textContent);
    const bytes = Uint8Array.from(packed, (letter) => letter.charCodeAt(0));
    const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(plain).text();
    document.head.append(script);
  }

  if (!("DecompressionStream" in window)) {
    document.getElementById("no-figures").hidden = false;
    return;
  }
  const library = unpack();

  async function show(element, figure) {
    await library;
    const layout = themed({ ...figure.layout, height: figure.height }, figure.data);
    if (figure.drawn) {
      for (const axis of ["xaxis", "yaxis"]) layout[axis].range = element.layout[axis].range;
    }
    if (figure.kind === "timeline") await GraphPipeTimeline.show(element, figure, layout, settings);
    else await Plotly.react(element, figure.data, layout, settings);
    figure.drawn = true;
    element.dataset.drawn = "yes";
  }

  const watcher = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (isIntersecting) begin(target);
    }
  }, { rootMargin: "400px" });

  async function begin(element) {
    const figure = figures.get(element);
    if (figure.begun) return;
    figure.begun = true;
    watcher.unobserve(element);
    await show(element, figure);
  }

  // What is out of sight is drawn when there is nothing else to do: a page that is printed has all its figures.
  const idle = window.requestIdleCallback ?? ((work) => setTimeout(work, 200));
  window.addEventListener("load", async () => {
    for (const element of figures.keys()) {
      await new Promise((done) => idle(done));
      await begin(element);
    }
  });

  for (const script of document.querySelectorAll("script[data-figure]")) {
    const element = document.getElementById(script.dataset.figure);
    figures.set(element, JSON.parse(script.textContent));
    watcher.observe(element);
  }
  for (const button of document.querySelectorAll("button[data-range]")) {
    button.addEventListener("click", async () => {
      const element = document.getElementById(button.dataset.of);
      await begin(element);
      await Plotly.relayout(element, { "xaxis.range": button.dataset.range.split(",").map(Number) });
    });
  }
  dark.addEventListener("change", () => {
    for (const [element, figure] of figures) if (figure.drawn) show(element, figure);
  });
})();

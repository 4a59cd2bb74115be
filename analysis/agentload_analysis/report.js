(function () {
  const specs = JSON.parse(document.getElementById("specs").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  function config() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const words = { labelColor: colour("--soft"), titleColor: colour("--soft"), titleFontWeight: "normal" };
    return {
      background: null,
      font: "system-ui, sans-serif",
      view: { stroke: null },
      axis: { ...words, gridColor: colour("--line"), domainColor: colour("--line"), tickColor: colour("--line"),
              labelFontSize: 12, titleFontSize: 12, titlePadding: 8 },
      legend: { ...words, labelFontSize: 12, symbolType: "square" },
    };
  }

  function draw() {
    for (const [name, spec] of Object.entries(specs)) {
      vegaEmbed("#plot-" + name, spec, {
        mode: "vega-lite", renderer: "svg", actions: false, ast: true, config: config(),
        tooltip: { theme: dark.matches ? "dark" : "light" },
      });
    }
  }

  draw();
  dark.addEventListener("change", draw);
})();

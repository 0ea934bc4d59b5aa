"""The look of a report's page, on top of the style that all pages share."""

from ._demo_page import STYLE

REPORT_STYLE = (
    STYLE
    + """
:root { --s0:#5b6470; --s1:#3b6fb6; --s2:#b8860b; --s3:#1a7f4b; --s4:#c2477f; --s5:#7a4fc0; --s6:#c8541d;
  --s7:#0f8a96; }
@media (prefers-color-scheme: dark) { :root { --s0:#aab3bf; --s1:#6ea1e6; --s2:#e3b341; --s3:#57c48c; --s4:#f08bb4;
  --s5:#b093f0; --s6:#f5925c; --s7:#4fc4cf; } }
html { scroll-behavior: smooth; -webkit-text-size-adjust: 100%; } body { overflow-wrap: break-word; }
.skip { position: absolute; left: -999px; } .skip:focus { left: 1rem; top: .5rem; background: var(--card); padding:
  .4rem; }
:focus-visible { outline: 2px solid var(--acc); outline-offset: 2px; border-radius: 4px; }
a { color: var(--acc); } nav { margin: 1.1rem 0; display: flex; flex-wrap: wrap; gap: .3rem .5rem; font-size: .92rem; }
nav a { border: 1px solid var(--line); border-radius: 999px; padding: .2rem .8rem; text-decoration: none; background:
  var(--card); }
nav a:hover { border-color: var(--acc); } section { scroll-margin-top: 1rem; } h2 { font-size: 1.3rem; margin-top:
  2.8rem; }
h3 { font-size: 1.05rem; margin: 1.6rem 0 .6rem; }
.wide-text { max-width: none; } .warn { border-left: 4px solid var(--under); background: var(--card); border-radius: 0
  8px 8px 0; padding: .55rem 1rem;
  margin: .6rem 0; max-width: none; font-size: .95rem; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: .6rem; margin: 1.2rem 0;
  padding: 0; }
.facts div { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: .55rem .8rem;
  min-width: 0; }
.facts dt { color: var(--soft); font-size: .78rem; } .facts dd { margin: 0; font-weight: 600; }
.facts code { font-size: .85em; } code { font-family: ui-monospace, Menlo, Consolas, monospace; font-size: .92em; }
.scroll { border: 1px solid var(--line); border-radius: 10px; background: var(--paper); }
table { min-width: 0; } caption { text-align: left; padding: .7rem .8rem .5rem; font-weight: 600; }
.scroll caption span.at { position: sticky; left: .8rem; display: inline-block; white-space: normal;
  max-width: min(100%, calc(100vw - 4rem)); } th, td { padding: .42rem .8rem; vertical-align: top; line-height: 1.3; }
thead th { white-space: normal; min-width: 6.5em; vertical-align: bottom; border-bottom: 2px solid var(--line); }
  tbody tr:last-child > * { border-bottom: 0; }
th[scope=row] { text-align: left; font-weight: 500; position: sticky; left: 0; background: var(--paper); z-index: 1; }
thead th.avg { min-width: 9em; } thead th:first-child { white-space: nowrap; min-width: 0; position: sticky; left: 0;
  background: var(--paper); z-index: 2; }
th[scope=row] i { display: inline-block; width: .62em; height: .62em; border-radius: 50%; margin-right: .5em;
  background: var(--c); }
th[scope=row] i.ring { background: none; box-shadow: inset 0 0 0 2px var(--c); }
td small { display: block; font-size: .76rem; margin-top: .05rem; padding-right: 1.7em; }
.plain td small { padding-right: 0; } td .pm { color: var(--soft); font-size: .84rem; }
td.best b { border-bottom: 2px solid var(--acc); } td b { font-weight: 500; } td.best b { font-weight: 700; }
.avg { background: var(--card); } .same { color: var(--soft); } .arrow { display: inline-block; width: 1.1em;
  text-align: center; }
tr.base > * { border-top: 2px solid var(--line); } thead + tbody tr.base:first-child > * { border-top: 0; }
.tip { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
details { border-top: 1px solid var(--line); } details > summary { padding: .55rem 0; margin: 0; font-weight: 600; }
details[open] > summary { margin-bottom: .3rem; } details.set { border: 0; }
details.set > summary { font-size: 1.05rem; border-bottom: 1px solid var(--line); }
.note { color: var(--soft); font-size: .84rem; max-width: none; margin: .5rem 0 1.4rem; }
svg.chart { width: 100%; height: auto; display: block; font: 11px system-ui, sans-serif; fill: var(--ink); overflow:
  visible; }
svg.wide { max-width: 600px; margin: 0 auto; } svg .line { fill: none; stroke: var(--c); stroke-width: 2;
  stroke-linejoin: round; }
svg .dot { fill: var(--c); stroke: var(--card); stroke-width: 1.5; }
svg .ring { fill: var(--card); stroke: var(--c); stroke-width: 2.2; } svg .link { stroke: var(--c); stroke-width: 1.3;
  opacity: .55; }
svg .label { font-size: 11.5px; fill: var(--ink); paint-order: stroke; stroke: var(--card); stroke-width: 3px;
  stroke-linejoin: round; }
svg .grid-line { stroke: var(--line); fill: none; } svg .axis { stroke: var(--soft); } svg .mean { stroke: var(--ink);
  stroke-width: 1.4; fill: none; }
svg .note { font-size: 11px; } svg .dashed { stroke-dasharray: 4 3; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; padding: .2rem .4rem; margin: .3rem 0
  0; font-size: .86rem; justify-content: center; }
.legend svg { width: 24px; height: 10px; vertical-align: middle; margin-right: .35em; } .legend small { color:
  var(--soft); }
.grid { grid-template-columns: repeat(auto-fill, minmax(min(100%, 250px), 1fr)); margin-bottom: .8rem; }
.key i { font-style: normal; white-space: nowrap; }
footer { margin-top: 3rem; padding-top: 1rem; border-top: 1px solid var(--line); }
@media (max-width: 600px) { main { padding: 1.2rem .85rem 3rem; } h1 { font-size: 1.4rem; } th, td { padding: .4rem
  .55rem; }
  .grid { display: flex; overflow-x: auto; scroll-snap-type: x proximity; gap: .5rem; padding-bottom: .4rem; }
  .grid figure { flex: 0 0 78%; scroll-snap-align: start; } figure { padding: .35rem; }
  svg.wide, svg.wide .note, svg.wide .label { font-size: 12.5px; } }
@media print { nav, .skip { display: none; } .scroll { overflow: visible; } figure, tr { break-inside: avoid; } }
@media (prefers-reduced-motion: reduce) { html { scroll-behavior: auto; } }
"""
)

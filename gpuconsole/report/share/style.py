"""The style sheet of the HTML page: one column of text, light and dark, readable on a phone."""

from __future__ import annotations

STYLE = """
:root {
  color-scheme: light dark;
  --page: #ffffff; --panel: #f5f6f8; --ink: #16191d; --dim: #5a626d; --rule: #dde1e6;
  --accent: #0a5cb8; --wait: #e3a21a; --wait-ink: #8a5a00; --work: #7b93ad; --good: #177a3c; --alert: #c0261f;
  --on-wait: #2b1d00; --on-work: #0c1622; --band: #eef1f5; --badge-ink: #ffffff;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #101317; --panel: #181c22; --ink: #e6e9ed; --dim: #9aa4b0; --rule: #2b313a;
    --accent: #6cb2ff; --wait: #d99a1c; --wait-ink: #f0b94a; --work: #5f7c9b; --good: #4cc277; --alert: #ff7b72;
    --on-wait: #1d1400; --on-work: #ffffff; --band: #1b2129; --badge-ink: #101317;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
main { max-width: 1048px; margin: 0 auto; padding: 24px 24px 48px; overflow-wrap: anywhere; }
p, h1, h2, h3, li, td, th, dt, dd, summary, span, b, code { unicode-bidi: isolate; }
h1 { font-size: 30px; line-height: 1.2; margin: 4px 0 8px; }
h2 { font-size: 19px; line-height: 1.3; margin: 44px 0 12px; padding-top: 14px; border-top: 1px solid var(--rule); }
h3 { font-size: 16px; line-height: 1.4; margin: 24px 0 4px; display: flex; flex-wrap: wrap; gap: 0 16px; justify-content: space-between; }
h3 .right { font-weight: 400; }
h4 { font-size: 14px; font-weight: 600; margin: 24px 0 6px; }
p { margin: 4px 0; max-width: 80ch; }
.kicker { color: var(--dim); margin: 0; }
.label { display: inline-block; margin: 4px 8px 0 0; padding: 1px 10px; border: 1px solid var(--wait); border-radius: 11px; color: var(--wait-ink); font-size: 13px; }
.answer { background: var(--panel); border-left: 5px solid var(--rule); border-radius: 4px; padding: 14px 20px 16px; margin: 14px 0; }
.answer.wait { border-color: var(--wait); } .answer.good { border-color: var(--good); } .answer.alert { border-color: var(--alert); }
.answer h2 { font-size: 24px; margin: 4px 0 8px; padding: 0; border: 0; }
.answer p { max-width: none; }
.answer .cost { font-size: 18px; color: var(--wait-ink); margin: 0 0 8px; }
.answer.good .cost { color: var(--ink); }
.answer .fix { font-size: 17px; margin: 2px 0; }
.dim, .formula { color: var(--dim); } .accent { color: var(--accent); } .good { color: var(--good); } .alert { color: var(--alert); }
.title, .good, .alert { font-weight: 600; }
.tiles { display: flex; flex-wrap: wrap; gap: 12px; margin: 0 0 8px; }
.tile { flex: 1 1 220px; background: var(--panel); border-radius: 4px; padding: 12px 16px; }
.tile .name { color: var(--dim); font-size: 13px; }
.tile .value { font-size: 22px; line-height: 1.3; font-weight: 600; }
.tile .note { color: var(--dim); font-size: 13px; }
.facts { margin: 6px 0; }
.facts > div { display: grid; grid-template-columns: 130px 1fr; gap: 0 12px; padding: 1px 0; }
.facts dt { color: var(--dim); } .facts dd { margin: 0; }
.scroll { overflow-x: auto; margin: 8px 0; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 400; color: var(--dim); border-bottom: 1px solid var(--rule); padding: 4px 14px 4px 0; vertical-align: bottom; }
td { padding: 4px 14px 4px 0; vertical-align: top; border-bottom: 1px solid var(--rule); }
tr:last-child td { border-bottom: 0; }
th.number, td.number { text-align: right; white-space: nowrap; }
td:last-child, th:last-child { padding-right: 0; }
td, th { overflow-wrap: break-word; }
table.short td:first-child { white-space: nowrap; }
.gap { height: 12px; }
td.bar { color: var(--accent); font-size: 8px; letter-spacing: -1px; white-space: nowrap; vertical-align: middle; }
td.tree { white-space: pre-wrap; }
pre { background: var(--panel); border-radius: 4px; padding: 10px 14px; margin: 6px 0; overflow-x: auto; font: 13px/1.45 ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace; }
details { margin: 10px 0; border: 1px solid var(--rule); border-radius: 4px; }
summary { cursor: pointer; padding: 8px 14px; font-weight: 600; }
details > div { padding: 0 14px 12px; }
figure { margin: 18px 0; }
figcaption { font-size: 14px; font-weight: 600; margin-bottom: 8px; }
figcaption small { font-size: 13px; font-weight: 400; color: var(--dim); }
svg { display: block; max-width: 100%; height: auto; font: 12px system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
.narrow { display: none; }
svg text { fill: var(--ink); } svg .tick { fill: var(--dim); } svg .figure { font-weight: 600; }
svg .grid { stroke: var(--rule); stroke-width: 1; } svg .reference { stroke: var(--dim); stroke-width: 1.5; stroke-dasharray: 4 3; }
svg polyline { fill: none; stroke-width: 2; stroke-linejoin: round; } svg polyline.trace { stroke: var(--accent); } svg polyline.dim { stroke: var(--dim); }
svg .trace-dot { fill: var(--accent); } svg .dim-dot { fill: var(--dim); }
svg .band { fill: var(--band); } svg .mark { stroke: var(--good); stroke-width: 1.5; stroke-dasharray: 5 3; }
svg .badge { fill: var(--good); } svg .badge-text { fill: var(--badge-ink); font-weight: 600; font-size: 11px; }
svg rect.total { fill: var(--accent); } svg rect.page { fill: var(--page); } svg rect.wait { fill: var(--wait); } svg rect.work { fill: var(--work); }
svg text.on-wait { fill: var(--on-wait); } svg text.on-work { fill: var(--on-work); }
svg .predicted { fill: var(--dim); fill-opacity: .45; }
svg .interval { stroke: var(--accent); stroke-width: 2.5; } svg .estimate { fill: var(--accent); }
svg g.good .interval { stroke: var(--good); } svg g.good .estimate, svg g.good .figure { fill: var(--good); }
svg g.alert .interval { stroke: var(--alert); } svg g.alert .estimate { fill: var(--alert); }
table.legend-table { width: auto; font-size: 13px; margin-top: 4px; } table.legend-table td { padding: 1px 18px 1px 0; border: 0; }
.swatch { display: inline-block; width: 12px; height: 12px; border-radius: 2px; margin-right: 6px; vertical-align: -1px; }
.legend { list-style: none; margin: 6px 0 0; padding: 0; display: flex; flex-wrap: wrap; gap: 2px 20px; font-size: 13px; }
.dense2 { opacity: .72; } .dense3 { opacity: .48; } .dense4 { opacity: .28; }
.swatch.wait { background: var(--wait); } .swatch.work { background: var(--work); } .swatch.trace { background: var(--accent); } .swatch.dim { background: var(--dim); }
.number-badge { display: inline-block; min-width: 18px; border-radius: 9px; background: var(--good); color: var(--badge-ink); text-align: center; font-size: 11px; font-weight: 600; margin-right: 6px; }
footer { margin-top: 40px; color: var(--dim); font-size: 13px; }
@media (max-width: 640px) {
  main { padding: 16px 16px 32px; }
  h1 { font-size: 23px; } h2 { margin-top: 28px; } .answer { padding: 12px 14px; } .answer .cost, .answer .fix { font-size: 16px; }
  .wide { display: none; } .narrow { display: block; }
  .facts > div { grid-template-columns: 1fr; padding: 4px 0; }
  .tile { flex-basis: 140px; padding: 10px 12px; } .tile .value { font-size: 19px; }
  table.cards thead { display: none; }
  table.cards tr { display: block; padding: 8px 0; border-bottom: 1px solid var(--rule); }
  table.cards td, table.cards td.number { display: block; border: 0; padding: 0; text-align: left; white-space: normal; max-width: none; }
  table.cards td.number { display: inline-block; margin-right: 14px; }
  table.cards td:first-child { display: block; font-weight: 600; }
  table.cards td[data-head]::before { content: attr(data-head) " "; color: var(--dim); font-weight: 400; }
  table.cards td:empty { display: none; }
}
@media print { details > summary { list-style: none; } h2 { break-after: avoid; } figure, .tile { break-inside: avoid; } }
"""
"""Colours have one meaning: amber waits, green is a gain, red needs action, blue is the measurement."""

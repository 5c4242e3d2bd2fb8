import {register_models} from "@bokehjs/base"

import {AnalysisTable} from "./analysis_table"
import {AnalysisTabs} from "./analysis_tabs"
import {CurvePlot} from "./curve_plot"
import {DeltaTable} from "./delta_table"
import {Details, TimelineTitle} from "./details"
import {DiffBar} from "./diff_bar"
import {DiffGraph} from "./diff_graph"
import {FlameBar} from "./flame_bar"
import {FlameGraph} from "./flame_graph"
import {Lines} from "./lines"
import {MemoryBar} from "./memory_bar"
import {MemoryPlot} from "./memory_plot"
import {MemoryTable} from "./memory_table"
import {Minimap} from "./minimap"
import {OpTable} from "./op_table"
import {Page} from "./page"
import {GroupHeader, ReportHeader} from "./report_header"
import {Search} from "./search"
import {StaticTables} from "./static_tables"
import {StoreGroup} from "./store_group"
import {EngineeringTimeFormatter} from "./time_plot"
import {Timeline} from "./timeline"
import {TimelineBar} from "./timeline_bar"
import {TraceStore} from "./trace_store"

register_models([
  AnalysisTable, AnalysisTabs, CurvePlot, DeltaTable, Details, DiffBar, DiffGraph, EngineeringTimeFormatter, FlameBar,
  FlameGraph, GroupHeader, Lines, MemoryBar, MemoryPlot, MemoryTable, Minimap, OpTable, Page, ReportHeader, Search, StaticTables,
  StoreGroup, Timeline, TimelineBar, TimelineTitle, TraceStore,
])

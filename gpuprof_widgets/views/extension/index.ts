import {register_models} from "@bokehjs/base"

import {Details} from "./details"
import {FlameBar} from "./flame_bar"
import {FlameGraph} from "./flame_graph"
import {Lines} from "./lines"
import {MemoryBar} from "./memory_bar"
import {MemoryPlot} from "./memory_plot"
import {MemoryTable} from "./memory_table"
import {Minimap} from "./minimap"
import {OpTable} from "./op_table"
import {ReportHeader} from "./report_header"
import {EngineeringTimeFormatter} from "./time_formatter"
import {Timeline} from "./timeline"
import {TimelineBar} from "./timeline_bar"
import {TraceStore} from "./trace_store"

register_models([
  Details, EngineeringTimeFormatter, FlameBar, FlameGraph, Lines, MemoryBar, MemoryPlot, MemoryTable, Minimap,
  OpTable, ReportHeader, Timeline, TimelineBar, TraceStore,
])

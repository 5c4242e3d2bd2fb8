import type * as p from "@bokehjs/core/properties"

import type {Panel} from "./panel"
import {ReportHeader, ReportHeaderView} from "./report_header"
import {StoreGroup} from "./store_group"
import type {FindingLine, TraceStore} from "./trace_store"

/** The first lines of a report on several traces; a finding may be about one of them. */
export class GroupHeaderView extends ReportHeaderView {
  declare model: GroupHeader

  override async lazy_initialize(): Promise<void> {
    await super.lazy_initialize()
    await this.model.group.ready
  }

  protected override get label(): string {
    return this.model.label
  }

  protected override get finding_lines(): FindingLine[] {
    return this.model.findings as FindingLine[]
  }

  /** What the page did to fit each trace is said once. */
  protected override get notes(): string[] {
    const {group, notes} = this.model
    return [...new Set([...notes, ...group.stores.flatMap((store) => store.data.header.notes)])]
  }

  protected override store_of({of}: FindingLine): TraceStore {
    return this.model.group.stores[of ?? 0]
  }
}

export class GroupHeader extends ReportHeader {
  declare properties: GroupHeader.Props
  declare __view_type__: GroupHeaderView

  static override __module__ = "gpuprof_widgets.views.models"

  static {
    this.prototype.default_view = GroupHeaderView
    this.define<GroupHeader.Props>(({List, Ref, Str, Unknown}) => ({
      group: [Ref(StoreGroup)],
      label: [Str, ""],
      findings: [List(Unknown), []],
      notes: [List(Str), []],
    }))
  }
}

export namespace GroupHeader {
  export type Attrs = p.AttrsOf<Props>
  export type Props = Panel.Props & {
    group: p.Property<StoreGroup>
    label: p.Property<string>
    findings: p.Property<unknown[]>
    notes: p.Property<string[]>
  }
}

export interface GroupHeader extends GroupHeader.Attrs {}

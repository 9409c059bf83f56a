//! The probes that a process carries, in the layout of the kernel's `kprobes/list`.

use sidestep_engine::{Installed, ProbeKind, SiteState, Status};
use sidestep_isa::Va;

use super::table::NAME_MAX;
use super::{json, number};

/// A line per probe. `verbose`: also who keeps it from being a jump.
pub fn lines(probes: &[Installed], verbose: bool) -> Vec<String> {
    let rows: Vec<[String; 8]> = probes.iter().map(row).collect();
    let mut widths = [0; 8];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    widths[2] = widths[2].min(NAME_MAX);
    let line = |row: &[String; 8]| {
        let [va, kind, symbol, object, state, hits, missed, share] = row;
        let [w_va, _, w_symbol, w_object, w_state, w_hits, w_missed, w_share] = widths;
        format!(
            "{va:<w_va$}  {kind}  {symbol:<w_symbol$}  {object:<w_object$}  {state:<w_state$}  {hits:>w_hits$}  \
             {missed:>w_missed$}  {share:>w_share$}"
        )
    };
    let blocked = |probe: &Installed| match verbose && !probe.blocked_by.is_empty() {
        true => format!("  blocked by {}", names(probes, &probe.blocked_by)),
        false => String::new(),
    };
    rows.iter().zip(probes).map(|(row, probe)| line(row) + &blocked(probe)).collect()
}

/// Sites that block another one, as the table has them.
fn names(probes: &[Installed], sites: &[Va]) -> String {
    let of = |va: &Va| probes.iter().find(|probe| probe.va == *va).and_then(symbol).unwrap_or_else(|| va.to_string());
    let once = if sites.len() == 1 { "that is" } else { "they are" };
    format!("{}: a jump once {once} disabled", sites.iter().map(of).collect::<Vec<_>>().join(", "))
}

fn symbol(probe: &Installed) -> Option<String> {
    probe.symbol.as_ref().map(|(name, offset)| format!("{name}+{offset:#x}"))
}

fn row(probe: &Installed) -> [String; 8] {
    let symbol = symbol(probe).unwrap_or_else(|| "?".to_owned());
    let file = probe.object.as_ref().and_then(|path| path.file_name());
    let object = file.map_or_else(|| "?".into(), |file| file.to_string_lossy());
    let state = match probe.state {
        SiteState::Enabled if probe.optimized => "[OPTIMIZED]",
        SiteState::Enabled => "",
        SiteState::Disabled => "[DISABLED]",
        SiteState::Gone => "[GONE]",
    };
    [
        probe.va.to_string(),
        kind(probe.kind).to_owned(),
        symbol,
        format!("[{object}]"),
        state.to_owned(),
        probe.counts.hits.to_string(),
        probe.counts.missed.to_string(),
        probe.share.map_or_else(|| "-".to_owned(), |share| format!("{:.2}%", f64::from(share) / 1e4)),
    ]
}

fn kind(kind: ProbeKind) -> &'static str {
    match kind {
        ProbeKind::Instruction => "p",
        ProbeKind::Post => "b",
        ProbeKind::Return => "r",
        ProbeKind::Usdt => "u",
        ProbeKind::Own => "-",
    }
}

/// Whose the session is, and what it takes.
pub fn summary(status: &Status) -> String {
    let controller = status.controller;
    let controller = match status.controller_alive {
        true => format!("controlled by process {controller}"),
        false => format!("process {controller}, which controlled them, is gone; the next attach removes them"),
    };
    let own = status.probes.iter().filter(|probe| probe.kind == ProbeKind::Own).count();
    let (probes, sites) = (status.probes.len() - own, status.sites);
    let (probes, sites) = (number::of(probes, "probe"), number::of(sites, "site"));
    format!("{probes} at {sites}, {} bytes of detours; {own} of sidestep's own; {controller}", status.detour_bytes)
}

/// An object per probe, and one about the session.
pub fn json(status: &Status) -> Vec<String> {
    let session = [
        ("controller", status.controller.to_string()),
        ("alive", status.controller_alive.to_string()),
        ("sites", status.sites.to_string()),
        ("detour_bytes", json::number(status.detour_bytes)),
    ];
    let probes = status.probes.iter().map(|probe| json::line("probe", json::object(members(probe))));
    probes.chain([json::line("session", json::object(session))]).collect()
}

fn members(probe: &Installed) -> Vec<(&'static str, String)> {
    let state = match probe.state {
        SiteState::Enabled => "enabled",
        SiteState::Disabled => "disabled",
        SiteState::Gone => "gone",
    };
    let mut members = vec![("address", json::string(&probe.va.to_string())), ("kind", json::string(kind(probe.kind)))];
    if let Some((name, offset)) = &probe.symbol {
        members.extend([("symbol", json::string(name)), ("offset", json::number(*offset))]);
    }
    if let Some(object) = &probe.object {
        members.push(("object", json::string(&object.to_string_lossy())));
    }
    members.extend([
        ("state", json::string(state)),
        ("optimized", probe.optimized.to_string()),
        ("blocked_by", json::array(probe.blocked_by.iter().map(|va| json::string(&va.to_string())))),
        ("hits", json::number(probe.counts.hits)),
        ("missed", json::number(probe.counts.missed)),
    ]);
    if let Some(share) = probe.share {
        members.push(("share", format!("{:.6}", f64::from(share) / 1e6)));
    }
    members
}

#[cfg(test)]
mod tests {
    use super::*;
    use sidestep_engine::Counts;

    fn probes() -> Vec<Installed> {
        let one = Installed {
            number: 0,
            va: Va(0x55d0_c3f8_c1a9),
            kind: ProbeKind::Instruction,
            symbol: Some(("leaf".to_owned(), 0)),
            object: Some("/bin/load".into()),
            state: SiteState::Enabled,
            optimized: true,
            blocked_by: Vec::new(),
            counts: Counts { hits: 12_345, missed: 0, unfinished: 0 },
            share: None,
        };
        let other = Installed {
            va: Va(0x55d0_c3f8_c240),
            kind: ProbeKind::Return,
            symbol: Some(("tree".to_owned(), 0x1c)),
            state: SiteState::Disabled,
            optimized: false,
            counts: Counts { hits: 7, missed: 10, unfinished: 0 },
            share: Some(834_600),
            ..one.clone()
        };
        let gone = Installed { symbol: None, object: None, state: SiteState::Gone, optimized: false, ..one.clone() };
        vec![one, other, gone]
    }

    #[test]
    fn lines_look_like_the_kernels() {
        let expected = "\
0x55d0c3f8c1a9  p  leaf+0x0   [load]  [OPTIMIZED]  12345   0       -
0x55d0c3f8c240  r  tree+0x1c  [load]  [DISABLED]       7  10  83.46%
0x55d0c3f8c1a9  p  ?          [?]     [GONE]       12345   0       -";
        assert_eq!(lines(&probes(), true).join("\n"), expected);
    }

    #[test]
    fn a_name_of_hundreds_of_characters_padded_all_lines() {
        let long = Installed { symbol: Some(("x".repeat(600), 0)), ..probes().remove(0) };
        let lines = lines(&[long, probes().remove(0)], false);
        assert!(lines[0].len() > 600 && lines[1].len() < 140, "{}", lines[1]);
    }

    #[test]
    fn who_blocks_a_jump_is_named() {
        let inside = Installed { va: Va(0x55d0_c3f8_c1ac), symbol: Some(("leaf".to_owned(), 3)), ..probes().remove(0) };
        let blocked_by = vec![inside.va];
        let trap = Installed { optimized: false, blocked_by, ..probes().remove(0) };
        let all = [trap, inside];
        assert!(lines(&all, true)[0].ends_with("0  -  blocked by leaf+0x3: a jump once that is disabled"));
        assert!(lines(&all, false)[0].ends_with("0  -"));
    }

    #[test]
    fn who_is_in_control_is_said() {
        let own = Installed { kind: ProbeKind::Own, ..probes().remove(0) };
        let mut status = Status {
            controller: 42,
            controller_alive: true,
            probes: [probes(), vec![own]].concat(),
            sites: 1,
            detour_bytes: 96,
        };
        let text = "3 probes at 1 site, 96 bytes of detours; 1 of sidestep's own; controlled by process 42";
        assert_eq!(summary(&status), text);
        status.controller_alive = false;
        assert!(summary(&status).ends_with("process 42, which controlled them, is gone; the next attach removes them"));
        let lines = json(&status);
        assert_eq!(
            lines[1],
            "{\"type\": \"probe\", \"data\": {\"address\": \"0x55d0c3f8c240\", \"kind\": \"r\", \"symbol\": \"tree\", \
             \"offset\": 28, \"object\": \"/bin/load\", \"state\": \"disabled\", \"optimized\": false, \"blocked_by\": [], \"hits\": 7, \
             \"missed\": 10, \"share\": 0.834600}}"
        );
        assert!(lines[4].contains("\"controller\": 42, \"alive\": false"));
    }
}

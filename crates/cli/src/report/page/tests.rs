use super::super::prediction::auto::tests::decision;
use super::*;
use crate::bench::{sample_panels, sample_predicted_panels, sample_study};

fn page() -> String {
    render(&[Report { study: sample_study(), panels: sample_panels() }]).expect("the template is right")
}

/// As a browser shows it: a slash is escaped in HTML.
fn shown(page: &str) -> String {
    page.replace("&#x2f;", "/")
}

/// The part of the page below a heading.
fn section<'a>(page: &'a str, id: &str) -> &'a str {
    let id = format!("id=\"{id}\"");
    page.split("<section").find(|part| part.contains(&id)).unwrap_or_else(|| panic!("there is no section {id}"))
}

/// A drawing of a part, by what it is called: for a page, and for a telephone.
fn drawings<'a>(part: &'a str, label: &str) -> [&'a str; 2] {
    ["wide", "narrow"].map(|width| {
        let (class, label) = (format!(" class=\"chart {width}\""), format!("aria-label=\"{label}"));
        let is_it = |svg: &&str| svg.starts_with(&class) && svg.contains(&label);
        let svg = part.split("<svg").find(is_it).unwrap_or_else(|| panic!("{label} is not drawn {width}"));
        svg.split("</svg>").next().unwrap_or_default()
    })
}

#[test]
fn the_page_needs_nothing_from_outside() {
    let page = page();
    for word in ["src=", "href=\"http", "@import", "url(", "<script", "<link"] {
        assert!(!page.contains(word), "{word}");
    }
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains("prefers-color-scheme:dark"));
}

#[test]
fn the_page_says_what_was_measured_where_and_what_was_not_real() {
    let page = page();
    for words in [
        "paceline bench --models cnn",
        "bytescheduler-ps wins, 11.6 % ahead of mg-wfbp",
        "replayed: rtx2080ti",
        "emulated: 10GbE",
        "rank 1 was killed by SIGKILL",
        "best speedup 7.52× (bytescheduler-ps)",
        "not decidable",
        "1970-01-01 00:00 UTC",
        "Noise 2.2 %, of bsp-a2a,",
    ] {
        assert!(page.contains(words), "no `{words}`");
    }
    // Every number in a chart stands in a table.
    assert!(page.matches("<table").count() >= 3 + 2);
}

/// Whatever names the replayed panel says so, in every section.
#[test]
fn every_section_says_what_was_not_real() {
    let page = render(&[Report { study: sample_study(), panels: sample_predicted_panels() }]).expect("a page");
    let title = "resnet50, local batch 64, 10GbE, 4 workers per host";
    let labelled = format!("{title} (replayed: rtx2080ti, emulated: 10GbE)");
    let (place, in_short) = ("resnet50 on 10GbE at 8", "resnet50 on 10GbE at 8, replayed, emulated");
    for (id, words, with_label) in [
        ("verdicts", "resnet50", "replayed: rtx2080ti"),
        ("panel-1", "<h2", "replayed: rtx2080ti"),
        ("prediction", title, &*labelled),
        ("findings", place, in_short),
        ("survey", "(resnet50 at 8", "(resnet50 at 8, replayed, emulated)"),
    ] {
        let counts = [words, with_label].map(|words| section(&page, id).matches(words).count());
        assert!(counts[0] > 0 && counts[0] == counts[1], "{id}: {words} {counts:?} times with its label");
    }
}

/// Each method has its bar with an error bar, and the best speedup stands above them; below them, where its time goes.
#[test]
fn throughput_and_its_breakdown_are_drawn_for_every_width() {
    let page = page();
    let panel = section(&page, "panel-1");
    let [wide, narrow] = drawings(panel, "Throughput by method and workers");
    let count = |svg: &str, class: &str| svg.matches(&format!("class=\"{class}\"")).count();
    assert_eq!(count(wide, "whisker"), 4, "an error bar for each method: {wide}");
    for svg in [wide, narrow] {
        // Those with servers are hatched.
        let bars = ["bsp", "mg", "byte", "hatch"].map(|class| count(svg, class));
        assert_eq!(bars, [2, 1, 1, 2], "{svg}");
        let [speedup, first] = ["best speedup 7.52× (bytescheduler-ps)", "<rect"].map(|what| svg.find(what));
        assert!(speedup.is_some() && speedup < first, "it stands on top: {svg}");
        for words in ["★ bytescheduler-ps", "1903 ± 7.08", "mg-wfbp", "bsp-a2a", "bsp-ps"] {
            assert!(svg.contains(words), "no `{words}`: {svg}");
        }
    }
    for svg in drawings(panel, "Where the time of an iteration goes") {
        assert_eq!(["compute", "exposed"].map(|class| count(svg, class)), [4, 4], "{svg}");
        assert!(svg.contains("bytescheduler-ps: waiting 67.25 ms"), "{svg}");
    }
}

/// Whatever is said of a method stands under its name, and every method has all of it.
#[test]
fn every_number_stands_in_its_column() {
    let page = shown(&page());
    let panel = section(&page, "panel-1");
    let table = panel.split("<table").nth(1).and_then(|table| table.split("</table>").next()).expect("a table");
    let cut = |text: &str, tag: &str| -> Vec<String> {
        let cells = text.split(tag).skip(1);
        cells.map(|cell| cell.split('<').next().unwrap_or_default().to_owned()).collect()
    };
    let names = cut(table.split("<tbody>").next().unwrap_or_default(), "<th scope=\"col\">");
    let rows: Vec<Vec<String>> = table.split("<tr").skip(2).map(|row| cut(row, "<td>")).collect();
    assert_eq!((names.len(), rows.len()), (1 + COLUMNS.len(), 4), "{table}");
    assert!(rows.iter().all(|row| row.len() == COLUMNS.len()), "{rows:#?}");
    for (name, value) in [
        ("samples/s", "1903"),
        ("± std", "7.08"),
        ("95 %", "± 17.6"),
        ("speedup", "7.52×"),
        ("efficiency", "94 %"),
        ("ms", "269"),
        ("exposed", "25.0 %"),
        ("MB sent", "1.00"),
        ("messages", "10"),
        ("runs × iterations", "3 × 4"),
    ] {
        let column = names.iter().skip(1).position(|other| other == name);
        assert_eq!(column.map(|column| rows[3][column].as_str()), Some(value), "{name}");
    }
}

/// Every claim with its verdict, what the survey says of every method, and where all of this was measured.
#[test]
fn claims_survey_and_machine_have_their_tables() {
    let report = Report { study: sample_study(), panels: sample_panels() };
    let page = shown(&render(std::slice::from_ref(&report)).expect("the template is right"));
    let claims = section(&page, "findings");
    let verdicts = ["✓ held", "✗ not held", "? not decidable"].map(|verdict| claims.matches(verdict).count());
    assert_eq!(verdicts.iter().sum::<usize>(), findings(std::slice::from_ref(&report)).len(), "{verdicts:?}");
    let survey = section(&page, "survey");
    for name in ["effect on the loss", "frequency", "traffic", "convergence", "measured MB sent", "measured messages"] {
        let column = format!("data-label=\"{name}\"");
        assert_eq!(survey.matches(&column).count(), 6, "{name}: one for each method that was measured");
    }
    let (place, machine) = (section(&page, "where"), &report.study.machine);
    for words in [&machine.processor, &machine.system, &machine.kernel, &format!("{} cores", machine.cores)] {
        assert!(place.contains(words.as_str()), "no `{words}`: {place}");
    }
    for rule in ["@media print", "@media(max-width:640px)", "prefers-color-scheme:dark"] {
        assert!(page.contains(rule), "{rule}");
    }
}

/// The load before the first run is somebody else's; what all runs met says how far the study has raised it.
#[test]
fn what_else_the_machine_had_to_do_stands_beside_it() {
    assert!(!section(&page(), "where").contains("load average"), "nobody looked");
    let place = |before: f64| {
        let mut panels = sample_panels();
        let runs = &mut panels[1].groups[0].rows[0].occasions;
        (runs[0].ended, runs[0].load) = (10, Some(before));
        (runs[1].ended, runs[1].load) = (20, Some(3.08));
        let page = render(&[Report { study: sample_study(), panels }]).expect("the template is right");
        section(&page, "where").to_owned()
    };
    let busy = "<dt>load average</dt><dd>7.92 over the minute before the first run, when the machine was busy with";
    for (before, words) in [(7.92, busy), (7.92, "; 3.08 to 7.92 before all runs"), (0.2, "run; 0.20 to 3.08 before")] {
        assert!(place(before).contains(words), "no `{words}`: {}", place(before));
    }
}

#[test]
fn the_command_can_be_typed_again() {
    let mut study = sample_study();
    study.command.extend(["--methods".to_owned(), "ddp;wfbp-ps".to_owned()]);
    let page = render(&[Report { study, panels: sample_panels() }]).expect("the template is right");
    // An apostrophe is escaped in HTML.
    let written = ["'", "&#x27;", "&#39;"].map(|mark| format!("--models cnn --methods {mark}ddp;wfbp-ps{mark}<"));
    assert!(written.iter().any(|command| page.contains(command)));
}

#[test]
fn predictions_stand_beside_what_was_measured() {
    assert!(!page().contains("id=\"prediction\""), "nothing was predicted");
    let page = render(&[Report { study: sample_study(), panels: sample_predicted_panels() }]).expect("a page");
    for words in ["Predictions are off by 5.0 %", "What the predictions would have chosen", "+5.0 %", "Error by method"]
    {
        assert!(page.contains(words), "no `{words}`");
    }
    for word in ["src=", "href=\"http", "<script", "<link"] {
        assert!(!page.contains(word), "{word}");
    }
}

/// Also where `bench` has predicted nothing.
#[test]
fn what_auto_chose_stands_there_with_its_reasons() {
    for (mut panels, predicted) in [(sample_panels(), false), (sample_predicted_panels(), true)] {
        let row = &mut panels[1].groups[0].rows[0];
        row.method = "auto".to_owned();
        let result = row.result.as_mut().expect("it ran");
        result.decision = Some(decision(9, 0.2, Some(0.3)));
        result.abandoned = vec![decision(0, 0.1, Some(0.4))];
        let page = render(&[Report { study: sample_study(), panels }]).expect("the template is right");
        let part = section(&page, "prediction");
        assert_eq!(part.contains("Error by method"), predicted);
        for words in [
            "<code>auto</code> chose, and why</h3>",
            "8 workers, auto: runs schedule=wfbp,arch=a2a:9, predicted 200 ms an iteration, measured 300 ms (+50.0 %)",
            "left its first plan at iteration 9.</li>",
            "<td data-label=\"chosen\"><code>schedule=wfbp,arch=a2a:0</code></td>",
            "<td data-label=\"why\">the best of 230 predicted plans; 2 others",
            "<td data-label=\"predicted, ms\">100 (90.0 to 110)</td><td data-label=\"measured, ms\">400</td>",
            "<td data-label=\"came true\">no, +300.0 %</td>",
            "<td data-label=\"another plan instead\">yes, from iteration 9 on</td>",
        ] {
            assert!(part.contains(words), "no `{words}`: {part}");
        }
    }
}

#[test]
fn what_users_name_is_escaped() {
    let mut panels = sample_panels();
    panels[0].setting.model = "<img onerror=x>".to_owned();
    panels[0].groups[1].rows[0].failures.push("<script>".to_owned());
    let page = render(&[Report { study: sample_study(), panels }]).expect("the template is right");
    assert!(!page.contains("<img") && !page.contains("<script"));
}

#[test]
fn lanes_count_each_moment_once() {
    let spans = [(0.0, 2.0), (1.0, 1.5), (1.0, 3.0)].map(|(start, end)| timeline::tests::span(start, end, 0));
    let lane = Lane { name: "sending".to_owned(), spans: spans.into() };
    let view = &lanes(&Process { name: "shard 0".to_owned(), lanes: vec![lane], ..Process::default() })[0];
    assert_eq!((view.busy_ms.as_str(), view.last_ms.as_str(), view.pieces), ("3000.00", "3000.00", 3));
    assert_eq!(view.name, "shard 0, sending");
}

#[test]
fn timelines_are_drawn_for_every_width() {
    let mut panels = sample_panels();
    let group = panels[1].groups.last_mut().expect("it was measured");
    let result = group.rows[0].result.as_mut().expect("it ran");
    let mut recorded = timeline::tests::timeline(2, 1);
    recorded.processes[0].dropped = 7;
    result.timeline = Some(recorded);
    let method = group.rows[0].method.clone();
    let page = render(&[Report { study: sample_study(), panels }]).expect("the template is right");
    assert_eq!(page.matches(&format!("aria-label=\"One iteration of {method}\"")).count(), 2, "wide and narrow");
    assert!(page.contains("7 events missing (worker 0)"));
    assert!(page.contains("worker 0, communication") && page.contains("the iteration before has left over"));
}

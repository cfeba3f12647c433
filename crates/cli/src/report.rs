//! `paceline report`, and the report that every `bench` writes: one HTML file that needs nothing from outside.

mod against;
pub mod aspects;
mod bars;
mod breakdown;
mod curves;
mod findings;
mod page;
mod prediction;
mod survey;
mod timeline;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use crate::Registry;
use crate::bench::{Panel, ResultStore, Study, predicted_panels};
use crate::failure::{Failure, unless_closed};
use crate::json_file::PlainFile;

use page::chart_alone;

/// What `report` is told.
#[derive(Args)]
pub struct ReportArguments {
    /// Databases of `paceline bench`: the last study of each, or FILE#N for study N
    #[arg(value_name = "RUNS", required = true)]
    runs: Vec<String>,

    /// The report
    #[arg(long, value_name = "FILE", default_value = "paceline-report.html")]
    report: PathBuf,

    /// Also write the bar charts as a file of their own
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// A study with what was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// What it was.
    pub study: Study,
    /// What came out.
    pub panels: Vec<Panel>,
}

/// Makes the report of studies that were measured before.
///
/// # Errors
/// A database cannot be read, or holds no such study; a file cannot be written.
pub fn run(arguments: &ReportArguments, registry: &Registry) -> Result<ExitCode, Failure> {
    let reports = arguments.runs.iter().map(|runs| read(runs, registry)).collect::<Result<Vec<Report>, _>>()?;
    if let Some(path) = &arguments.svg {
        let panels: Vec<Panel> = reports.iter().flat_map(|report| report.panels.iter().cloned()).collect();
        PlainFile::create(path)?.write(&chart_alone(&panels))?;
    }
    write(&reports, &arguments.report)?;
    let path = std::path::absolute(&arguments.report).unwrap_or_else(|_| arguments.report.clone());
    unless_closed(std::io::Write::write_all(&mut std::io::stdout(), format!("{}\n", path.display()).as_bytes()))?;
    Ok(ExitCode::SUCCESS)
}

/// The study that `FILE` or `FILE#N` names.
///
/// # Errors
/// It cannot be read, or is not there.
pub fn read(runs: &str, registry: &Registry) -> Result<Report, Failure> {
    let numbered = runs.rsplit_once('#').and_then(|(file, number)| Some((file, number.parse::<i64>().ok()?)));
    let (file, number) = numbered.map_or((runs, None), |(file, number)| (file, Some(number)));
    let store = ResultStore::open_existing(Path::new(file))?;
    let mut studies = store.studies()?;
    let known: Vec<i64> = studies.iter().map(|(_, study)| study.id).collect();
    studies.retain(|(_, study)| number.is_none_or(|number| study.id == number));
    let (id, study) = studies.pop().ok_or_else(|| {
        Failure::failed(format!("{runs} holds no such study")).help(format!("the studies in it are {known:?}"))
    })?;
    let panels = predicted_panels(&study, &store.cells(id)?, registry);
    Ok(Report { study, panels })
}

/// Writes the report.
///
/// # Errors
/// The file cannot be written.
pub fn write(reports: &[Report], path: &Path) -> Result<(), Failure> {
    let page = page::render(reports).map_err(|error| Failure::failed("cannot lay out the report").cause(error))?;
    PlainFile::create(path)?.write(&page)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The chart that the README shows follows from the numbers of the run that it names.
    #[test]
    fn the_chart_in_the_readme_is_that_of_the_kept_study() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let readme = std::fs::read_to_string(root.join("README.md")).expect("a README");
        let Some((_, rest)) = readme.split_once("<!-- study of ") else {
            assert!(readme.contains("<!-- no study is kept yet -->"), "the README has no place for a study");
            return;
        };
        let (run, _) = rest.split_once(" -->").expect("the mark has an end");
        let json = std::fs::read_to_string(root.join(run).join("study.json")).expect("the run is kept");
        let mut kept: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        let panels: Vec<Panel> = serde_json::from_value(kept["panels"].take()).expect("panels");
        if std::env::var_os("PACELINE_UPDATE_DOCS").is_some() {
            for place in [root.join("docs/study.svg"), root.join(run).join("study.svg")] {
                std::fs::write(place, chart_alone(&panels)).expect("it can be written");
            }
        }
        let shown = std::fs::read_to_string(root.join("docs/study.svg")).expect("the chart");
        assert!(
            shown == chart_alone(&panels),
            "docs/study.svg is not that of {run}: run this test with PACELINE_UPDATE_DOCS=1"
        );
    }
}

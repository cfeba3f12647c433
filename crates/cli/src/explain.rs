//! `paceline explain`: a strategy in words.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use paceline_strategy::{Aspect, Method, Registry, Strategy};
use serde::Serialize;

use crate::failure::{Failure, unless_closed};
use crate::json_file::JsonFile;

/// What `explain` is told.
#[derive(Args)]
pub struct ExplainArguments {
    /// A preset or aspects, such as mg-wfbp or schedule=wfbp,arch=ps:2; none: what there is to choose from
    #[arg(value_name = "STRATEGY")]
    strategy: Option<String>,

    /// Write the answer to this file
    #[arg(long, value_name = "FILE", requires = "strategy")]
    json: Option<PathBuf>,
}

/// What stands in the file, besides machine and command line.
#[derive(Serialize)]
struct Report {
    /// With every aspect.
    strategy: String,
    /// In words.
    sentence: String,
    /// Does it give the parameters of single-worker SGD on the joined batch, to rounding?
    lossless: bool,
}

/// Explains.
///
/// # Errors
/// The text is no strategy.
pub fn run(arguments: &ExplainArguments, registry: &Registry) -> Result<ExitCode, Failure> {
    let Some(text) = &arguments.strategy else {
        unless_closed(list(registry, &mut io::stdout().lock()))?;
        return Ok(ExitCode::SUCCESS);
    };
    let strategy = parse(registry, text)?;
    let report = Report {
        strategy: strategy.to_string(),
        sentence: strategy.sentence(registry),
        lossless: strategy.lossless(registry),
    };
    let result = if report.lossless {
        "It is lossless: the parameters are those of single-worker SGD on the joined batch, to rounding."
    } else {
        "It is lossy: the parameters differ from those of single-worker SGD on the joined batch."
    };
    if let Some(path) = &arguments.json {
        JsonFile::create(path)?.write(&report)?;
    }
    unless_closed(writeln!(io::stdout(), "{}\n{}\n{result}", report.strategy, report.sentence))?;
    Ok(ExitCode::SUCCESS)
}

/// The strategy that a text names.
///
/// # Errors
/// Wrong usage, with the place in the text marked.
pub fn parse(registry: &Registry, text: &str) -> Result<Strategy, Failure> {
    registry.parse(text).map_err(|error| {
        let before = text.get(..error.span.start).unwrap_or_default().chars().count();
        let marked = text.get(error.span.clone()).unwrap_or_default().chars().count().max(1);
        let marks = format!("{}{}", " ".repeat(before), "^".repeat(marked));
        Failure::usage(format!("{error}\n  {text}\n  {marks}"))
            .help("`paceline explain` lists what there is to choose from")
    })
}

fn list(registry: &Registry, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "A strategy is a preset, aspects, or both: PRESET,ASPECT=METHOD,…\n\npresets")?;
    let forms: Vec<String> = registry.short_forms().map(Method::form).collect();
    let names = registry.presets().iter().map(|preset| preset.name).chain(forms.iter().map(String::as_str));
    let width = names.map(str::len).max().unwrap_or(0);
    for preset in registry.presets() {
        let note = if registry.parse(preset.name).is_ok() { "" } else { " (not built yet)" };
        writeln!(out, "  {:<width$}  {}{note}", preset.name, preset.strategy.unwrap_or_default())?;
    }
    for form in &forms {
        writeln!(out, "  {form:<width$}  schedule={form}, the other aspects by default")?;
    }
    for aspect in Aspect::ALL {
        writeln!(out, "\n{aspect}=")?;
        let width = registry.methods(aspect).map(|method| method.form().len()).max().unwrap_or(0);
        for method in registry.methods(aspect) {
            let what = if method.available { method.sentence } else { "not built yet" };
            writeln!(out, "  {:<width$}  {what}", method.form())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use paceline_collective::registry;
    use paceline_plan::CollectiveKind;

    use super::*;
    use paceline_strategy::Kind;

    /// The grammar cannot know the algorithms by itself: it is below them.
    #[test]
    fn a_strategy_can_name_every_all_reduce_and_nothing_else() {
        let strategies = Registry::built_in();
        let a2a = strategies.method(Aspect::Arch, "a2a").expect("it is built in");
        let Kind::OneOf(named) = a2a.parameters[0].kind else { panic!("the algorithm is one of several") };
        let mut named = named.to_vec();
        let mut known: Vec<_> = registry::of_kind(CollectiveKind::AllReduce).map(|known| known.name()).collect();
        known.push("auto");
        named.sort_unstable();
        known.sort_unstable();
        assert_eq!(named, known);
    }
}

//! The study's own cells (data/study_calibration.csv), and ours beside them.

use std::fs;
use std::path::Path;

use serde::Serialize;

use super::cells::{Cell, find};
use super::explanations::explanation;
use crate::compare::Error;

/// A gap that is larger than this must be explained.
pub const GAP_MAX: f64 = 0.1;

/// A line of the file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StudyCell {
    /// As we call it.
    pub model: String,
    /// As we call it.
    pub network: String,
    /// The preset that runs it as the study ran it.
    pub method: String,
    /// GPUs.
    pub workers: usize,
    /// Samples per GPU and iteration.
    pub local_batch: usize,
    /// Samples per second of all.
    pub samples_per_s: f64,
    /// What the file says besides.
    pub note: String,
}

/// The study's cell and ours.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The study's.
    pub study: StudyCell,
    /// Ours, in samples per second; None: it was not measured.
    pub ours: Option<f64>,
    /// Ours over the study's, less 1; None: they are not compared.
    pub gap: Option<f64>,
    /// Seconds of an iteration, ours less the study's.
    pub difference_s: Option<f64>,
    /// Why it is not compared.
    pub skipped: Option<String>,
    /// What explains a gap that is larger than [`GAP_MAX`].
    pub explained: Option<String>,
}

/// Reads the file.
pub fn read(root: &Path) -> Result<Vec<StudyCell>, Error> {
    let path = root.join("data/study_calibration.csv");
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let cells = text.lines().skip(1).map(|line| parse(line).ok_or(line));
    cells.collect::<Result<_, _>>().map_err(|line| format!("{}: `{line}` is no cell", path.display()).into())
}

/// `model,local_batch,network,method,workers,samples_per_s,std,single_gpu,note`.
pub fn parse(line: &str) -> Option<StudyCell> {
    let fields: Vec<&str> = line.split(',').collect();
    let [model, local_batch, network, method, workers, samples_per_s, _, _, note] = fields[..] else { return None };
    Some(StudyCell {
        model: match model {
            "ResNet-50" => "resnet50",
            "BERT-Base" => "bert-base",
            "BERT-Large" => "bert-large",
            _ => return None,
        }
        .to_owned(),
        network: network.to_owned(),
        method: format!("study-{}", method.to_lowercase()),
        workers: workers.parse().ok()?,
        local_batch: local_batch.parse().ok()?,
        samples_per_s: samples_per_s.parse().ok()?,
        note: note.to_owned(),
    })
}

impl Comparison {
    /// Is the gap small, or explained? None: there is none.
    pub fn agrees(&self) -> Option<bool> {
        self.gap.map(|gap| gap.abs() <= GAP_MAX || self.explained.is_some())
    }

    /// Were the processors, and not the emulated links, what limited ours?
    pub fn is_limited(&self) -> bool {
        self.ours.is_some() && self.gap.is_none()
    }
}

/// Puts ours beside the study's. `left_out` says of a cell why it was not to be measured.
pub fn compare(study: &[StudyCell], ours: &[Cell], left_out: &dyn Fn(&StudyCell) -> Option<String>) -> Vec<Comparison> {
    study.iter().map(|one| comparison(one, ours, left_out)).collect()
}

fn comparison(study: &StudyCell, ours: &[Cell], left_out: &dyn Fn(&StudyCell) -> Option<String>) -> Comparison {
    let skip = |why: String| Comparison {
        study: study.clone(),
        ours: None,
        gap: None,
        difference_s: None,
        skipped: Some(why),
        explained: None,
    };
    if study.has_no_servers() {
        return skip("the study ran no server there".into());
    }
    let Some(cell) = find(ours, &study.model, &study.network, study.workers, &study.method) else {
        return skip(left_out(study).unwrap_or_else(|| "not part of this run".into()));
    };
    let (Some(samples_per_s), Some(iteration_s)) = (cell.samples_per_s, cell.iteration_s) else {
        return skip(cell.failures.join("; "));
    };
    if cell.local_batch != study.local_batch {
        return skip(format!("a local batch of {}, the study's is {}", cell.local_batch, study.local_batch));
    }
    if let Some(why) = &cell.limited {
        return Comparison { ours: Some(samples_per_s), ..skip(format!("not compared: {why}")) };
    }
    let gap = samples_per_s / study.samples_per_s - 1.0;
    Comparison {
        study: study.clone(),
        ours: Some(samples_per_s),
        gap: Some(gap),
        difference_s: Some(iteration_s - study.iteration_s()),
        skipped: None,
        explained: if gap.abs() > GAP_MAX { explanation(study, cell) } else { None },
    }
}

impl StudyCell {
    /// Seconds of an iteration.
    pub fn iteration_s(&self) -> f64 {
        (self.workers * self.local_batch) as f64 / self.samples_per_s
    }

    /// With one host of workers, BytePS used NCCL only: a server had nothing to do.
    pub fn has_no_servers(&self) -> bool {
        self.note.contains("no_PS_traffic")
    }
}

#[cfg(test)]
mod tests {
    use super::super::cells::samples::cell;
    use super::*;

    #[test]
    fn the_file_is_read_whole() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let cells = read(&root).expect("the file");
        assert_eq!(cells.len(), 76);
        let one = |cell: &&StudyCell| (&*cell.method, cell.workers) == ("study-wfbp-a2a", 8);
        let found: Vec<&StudyCell> = cells.iter().filter(one).collect();
        assert_eq!(found.len(), 3);
        assert_eq!((&*found[0].model, &*found[0].network, found[0].samples_per_s), ("bert-large", "10GbE", 29.06));
    }

    #[test]
    fn a_gap_is_relative_to_the_study() {
        let study = parse("ResNet-50,64,10GbE,BSP-A2A,8,1000,1,253.1,").expect("a cell");
        let ours = [cell("resnet50", "10GbE", 8, "study-bsp-a2a", 1250.0)];
        let compare = |study: &StudyCell, ours: &[Cell]| {
            compare(std::slice::from_ref(study), ours, &|_| Some("too large".into())).remove(0)
        };
        let compared = compare(&study, &ours);
        assert_eq!((compared.agrees(), &compared.explained), (Some(false), &None));
        assert_eq!((compared.gap, compared.ours), (Some(0.25), Some(1250.0)));
        assert!((compared.difference_s.expect("both are there") - (0.4096 - 0.512)).abs() < 1e-12);
        let alone = StudyCell { note: "single_node;no_PS_traffic(1 worker machine)".into(), ..study.clone() };
        assert!(compare(&alone, &ours).skipped.is_some());
        let smaller = compare(&StudyCell { local_batch: 32, ..study.clone() }, &ours);
        assert!(smaller.skipped.is_some_and(|why| why.contains("local batch of 64")));
        let limited = [Cell { limited: Some("its links were slower".into()), ..ours[0].clone() }];
        let limited = compare(&study, &limited);
        assert_eq!((limited.ours, limited.gap, limited.agrees()), (Some(1250.0), None, None));
        assert!(limited.is_limited() && !compared.is_limited());
        assert_eq!(limited.skipped.as_deref(), Some("not compared: its links were slower"));
        let left_out = compare(&StudyCell { workers: 16, ..study }, &ours);
        assert_eq!((left_out.skipped.as_deref(), left_out.agrees()), (Some("too large"), None));
    }
}

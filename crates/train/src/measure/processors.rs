//! How many processors were busy while workers waited for communication.
//!
//! What a worker's own process takes while it waits says little by itself: the others may be computing then, which takes
//! nothing, or be at their communication, whether they wait for it or not. So all of them are looked at, part by part of an
//! iteration.

use std::time::Instant;

use super::conduct::Conduct;
use super::summary::Tally;
use crate::error::TrainError;
use crate::replay::Moment;

/// An iteration is looked at in so many equal parts. Waits that are shorter than one are seen together with what is around them.
const PARTS: usize = 256;

impl Conduct<'_> {
    /// Processors that the processes of workers and servers kept busy, all of them together, while a worker waited for
    /// communication; the mean over all that workers waited. None if none had to wait. The same on all workers, which all call it.
    pub(super) fn processors_busy(&self, tally: &Tally) -> Result<Option<f64>, TrainError> {
        let ends_s = self.slowest(&tally.ends_s.concat())?;
        let (mut rest, mut lengths_s, mut own) = (&ends_s[..], Vec::new(), Vec::new());
        for ((ends_s, start), seen) in tally.ends_s.iter().zip(&tally.starts).zip(&tally.seen) {
            let (ends_s, after) = rest.split_at(ends_s.len());
            rest = after;
            let edges_s = edges(ends_s);
            lengths_s.extend(edges_s.windows(2).map(|pair| pair[1] - pair[0]));
            own.extend(Course::of(seen.iter().flat_map(|seen| &seen.moments), *start).parts(&edges_s));
        }
        let mean = self.mean(own.concat())?;
        Ok(while_waiting(&lengths_s, &mean, self.workers().world_size()))
    }
}

/// Where the parts of the iterations begin and end that end at these times, after the first one.
fn edges(ends_s: &[f64]) -> Vec<f64> {
    let of_iteration = |pair: &[f64]| {
        let (from_s, part_s) = (pair[0], (pair[1] - pair[0]) / PARTS as f64);
        (0..PARTS).map(move |part| from_s + part as f64 * part_s).collect::<Vec<_>>()
    };
    ends_s.windows(2).flat_map(of_iteration).chain(ends_s.last().copied()).collect()
}

/// What a worker has waited and its process has had of the processors until when, both as points on a line.
struct Course {
    waited: Vec<(f64, f64)>,
    processor: Vec<(f64, f64)>,
}

impl Course {
    /// In seconds since `start`.
    fn of<'a>(moments: impl Iterator<Item = &'a Moment>, start: Instant) -> Course {
        let mut course = Course { waited: Vec::new(), processor: Vec::new() };
        for moment in moments {
            let at_s = moment.at.saturating_duration_since(start).as_secs_f64();
            let (before_s, waited_s) = course.waited.last().copied().unwrap_or((at_s, 0.0));
            let more_s = if moment.has_waited { at_s - before_s } else { 0.0 };
            course.waited.push((at_s, waited_s + more_s));
            course.processor.push((at_s, moment.processor.as_secs_f64()));
        }
        course
    }

    /// By part: seconds of waiting, and of the processors.
    fn parts(&self, edges_s: &[f64]) -> Vec<[f64; 2]> {
        let within = |line: &[(f64, f64)], pair: &[f64]| at(line, pair[1]) - at(line, pair[0]);
        edges_s.windows(2).map(|pair| [within(&self.waited, pair), within(&self.processor, pair)]).collect()
    }
}

/// On the line through these points; before the first and after the last it is level.
fn at(line: &[(f64, f64)], time_s: f64) -> f64 {
    let after = line.partition_point(|point| point.0 <= time_s);
    match (after.checked_sub(1).map(|before| line[before]), line.get(after)) {
        (Some((from_s, from)), Some(&(to_s, to))) => from + (to - from) * (time_s - from_s) / (to_s - from_s),
        (Some((_, value)), None) | (None, Some(&(_, value))) => value,
        (None, None) => 0.0,
    }
}

/// The processors that were busy, weighted by how much was waited: of the parts' lengths, and of the means over so many workers of
/// what each waited in a part and its process had of the processors.
fn while_waiting(lengths_s: &[f64], mean: &[f64], workers: usize) -> Option<f64> {
    let (mut waited_s, mut weighted) = (0.0, 0.0);
    for (length_s, part) in lengths_s.iter().zip(mean.chunks_exact(2)).filter(|(length_s, _)| **length_s > 0.0) {
        waited_s += part[0];
        weighted += part[0] * part[1] * workers as f64 / length_s;
    }
    (waited_s > 0.0).then(|| weighted / waited_s)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Moments at these seconds: what the process had had of the processors, and whether the time before was spent waiting.
    fn course(moments: &[(f64, f64, bool)]) -> Course {
        let start = Instant::now();
        let moment = |&(at_s, processor_s, has_waited): &(f64, f64, bool)| Moment {
            at: start + Duration::from_secs_f64(at_s),
            processor: Duration::from_secs_f64(processor_s),
            has_waited,
        };
        Course::of(moments.iter().map(moment).collect::<Vec<_>>().iter(), start)
    }

    fn busy(courses: &[Course], ends_s: &[f64]) -> Option<f64> {
        let edges_s = edges(ends_s);
        let lengths_s: Vec<f64> = edges_s.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mut sums = vec![0.0; 2 * lengths_s.len()];
        for course in courses {
            let parts = course.parts(&edges_s).concat();
            sums.iter_mut().zip(parts).for_each(|(sum, part)| *sum += part / courses.len() as f64);
        }
        while_waiting(&lengths_s, &sums, courses.len())
    }

    /// The first waits for 16 s and keeps one processor busy meanwhile, then computes for 16 s; the second the other way round.
    /// As if all waited at once these would be two.
    #[test]
    fn workers_that_wait_by_turns_keep_one_processor_busy() {
        let first = course(&[(0.0, 5.0, false), (16.0, 21.0, true), (32.0, 21.0, false)]);
        let second = course(&[(16.0, 3.0, false), (32.0, 19.0, true)]);
        let found = busy(&[first, second], &[0.0, 32.0]).expect("they wait");
        assert!((found - 1.0).abs() < 1e-9, "{found}");
    }

    #[test]
    fn what_others_do_meanwhile_counts_and_what_they_do_at_other_times_does_not() {
        // Waits in the second of two iterations.
        let waits = || course(&[(32.0, 1.0, false), (48.0, 9.0, true), (64.0, 9.0, false)]);
        let works_then = course(&[(32.0, 0.0, false), (48.0, 16.0, false)]);
        let works_before = course(&[(0.0, 0.0, false), (32.0, 32.0, false)]);
        let of = |other| busy(&[waits(), other], &[0.0, 32.0, 64.0]).expect("one waits");
        assert!((of(works_then) - 1.5).abs() < 1e-9);
        assert!((of(works_before) - 0.5).abs() < 1e-9);
        assert_eq!(busy(&[course(&[(0.0, 0.0, false), (9.0, 9.0, false)])], &[0.0, 32.0]), None, "nobody waits");
        assert_eq!(busy(&[course(&[])], &[0.0, 32.0]), None);
    }
}

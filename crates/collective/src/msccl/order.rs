//! The order in which a file's steps could be done, one after the other.

use super::connect::Wiring;
use super::file::File;

/// A step: its rank, thread block and place in that.
pub(super) type Place = (usize, usize, usize);

/// All steps, wave by wave: a step is in the first wave in which all that it waits for is done. Within a wave by rank and
/// thread block. Only what a ring of waits holds up is missing.
pub(super) fn waves(file: &File, wiring: &Wiring) -> Vec<Place> {
    let mut first: Vec<Vec<usize>> = Vec::new();
    let mut places: Vec<Place> = Vec::new();
    for (rank, gpu) in file.gpus.iter().enumerate() {
        let mut of_rank = Vec::new();
        for (block, content) in gpu.blocks.iter().enumerate() {
            of_rank.push(places.len());
            places.extend((0..content.steps.len()).map(|step| (rank, block, step)));
        }
        first.push(of_rank);
    }
    let number = |(rank, block, step): Place| first[rank][block] + step;
    let mut waits = vec![0u32; places.len()];
    let mut then: Vec<Vec<usize>> = vec![Vec::new(); places.len()];
    let mut follows = |earlier: Place, later: Place| {
        then[number(earlier)].push(number(later));
        waits[number(later)] += 1;
    };
    for &(rank, block, step) in &places {
        let own = (rank, block, step);
        if step > 0 {
            follows((rank, block, step - 1), own);
        }
        if let Some((other, awaited)) = file.gpus[rank].blocks[block].steps[step].after {
            follows((rank, other, awaited), own);
        }
    }
    for (rank, ends) in wiring.ends.iter().enumerate() {
        for (block, ends) in ends.iter().enumerate() {
            let Some((peer, sender)) = ends.from else { continue };
            for (&here, &there) in ends.receives.iter().zip(&wiring.ends[peer][sender].sends) {
                follows((peer, sender, there), (rank, block, here));
            }
        }
    }
    let mut wave: Vec<usize> = (0..places.len()).filter(|&step| waits[step] == 0).collect();
    let mut order = Vec::with_capacity(places.len());
    while !wave.is_empty() {
        let mut next = Vec::new();
        for &step in &wave {
            order.push(places[step]);
            for &later in &then[step] {
                waits[later] -= 1;
                if waits[later] == 0 {
                    next.push(later);
                }
            }
        }
        next.sort_unstable();
        wave = next;
    }
    order
}

/// The candidate that a mistyped word most likely meant: the one the fewest edits away, if those are few for its length.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let allowed = (word.chars().count() / 3).max(1) + 1;
    let word = word.to_lowercase();
    let distances = candidates.into_iter().map(|candidate| (edit_distance(&word, candidate), candidate));
    let (distance, candidate) = distances.min_by_key(|&(distance, _)| distance)?;
    // As many edits as the candidate has letters make anything of anything.
    (distance <= allowed && distance < candidate.chars().count()).then_some(candidate)
}

/// Insertions, deletions, replacements and swaps of neighbours that lead from one word to the other ("optimal string
/// alignment"). Time and memory: the product of the lengths.
fn edit_distance(from: &str, to: &str) -> usize {
    let (from, to): (Vec<char>, Vec<char>) = (from.chars().collect(), to.chars().collect());
    let mut distance = vec![vec![0; to.len() + 1]; from.len() + 1];
    for row in 0..=from.len() {
        for column in 0..=to.len() {
            distance[row][column] = if row == 0 || column == 0 {
                row + column
            } else {
                let replaced = usize::from(from[row - 1] != to[column - 1]);
                let swapped =
                    row > 1 && column > 1 && from[row - 1] == to[column - 2] && from[row - 2] == to[column - 1];
                let swap = if swapped { distance[row - 2][column - 2] + 1 } else { usize::MAX };
                (distance[row - 1][column] + 1)
                    .min(distance[row][column - 1] + 1)
                    .min(distance[row - 1][column - 1] + replaced)
                    .min(swap)
            };
        }
    }
    distance[from.len()][to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        for (from, to, expected) in
            [("", "", 0), ("", "tcp", 3), ("tcp", "tcp", 0), ("wbfp", "wfbp", 1), ("rng", "ring", 1), ("shm", "tcp", 3)]
        {
            assert_eq!(edit_distance(from, to), expected, "{from} {to}");
            assert_eq!(edit_distance(to, from), expected, "{to} {from}");
        }
    }

    #[test]
    fn a_word_far_from_all_has_no_nearest() {
        let protocols = ["shm", "tcp", "auto"];
        assert_eq!(nearest("tpc", protocols), Some("tcp"));
        assert_eq!(nearest("TCP", protocols), Some("tcp"));
        assert_eq!(nearest("infiniband", protocols), None);
        assert_eq!(nearest("", protocols), None);
    }
}

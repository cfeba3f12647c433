//! How much others are in the way, as all ranks agree: rank 0 finds it out of times on which all have agreed
//! ([`paceline_tune::congestion`]), and tells it at the boundary.

use paceline_tune::Congestion;

use super::learning::Situations;

/// As the boundary tells it.
pub(crate) fn of_number(number: i64) -> Congestion {
    let known = usize::try_from(number).ok().and_then(|number| Congestion::ALL.get(number));
    known.copied().unwrap_or(Congestion::None)
}

/// The learner knows of it in every context.
pub(crate) fn tell(situations: &mut Situations, congestion: Congestion) {
    situations.values_mut().flatten().for_each(|situation| situation.state.congestion = congestion);
}

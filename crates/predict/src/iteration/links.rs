use super::places::Places;

/// Links of which each carries one operation at a time, the most urgent of those that are on it: what becomes ready late and
/// is more urgent overtakes, as messages do, and the rest of what it interrupts comes later.
///
/// Operations go by their place in the dispatchers' order. What a link does next is found by looking at all of them, which are
/// few; what it carries next costs a look at a 64th of the operations.
pub(super) struct Links {
    links: Vec<Link>,
    /// By link: when it is through with what it carries, unless something overtakes that. Infinite: it carries nothing.
    ends_s: Vec<f64>,
    /// By place: links that are not through with it.
    missing: Vec<usize>,
}

struct Link {
    /// By place.
    loads: Vec<OnLink>,
    waiting: Places,
    carries: Option<usize>,
    /// Since when it carries that, and since when at its pace.
    taken_s: f64,
    since_s: f64,
    /// Seconds that a second of what it carries takes.
    pace: f64,
}

/// What a link has of an operation.
#[derive(Clone, Copy, Default)]
struct OnLink {
    left_s: f64,
    /// When the link first carried it, if it has.
    began_s: Option<f64>,
}

/// What a link is through with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Delivered {
    pub place: usize,
    /// When the link first carried it.
    pub began_s: f64,
    /// No other link has anything of it left.
    pub by_all: bool,
}

impl Links {
    /// So many links for so many operations.
    pub fn new(links: usize, operations: usize) -> Links {
        let link = || Link {
            loads: vec![OnLink::default(); operations],
            waiting: Places::up_to(operations),
            carries: None,
            taken_s: 0.0,
            since_s: 0.0,
            pace: 1.0,
        };
        Links {
            links: (0..links).map(|_| link()).collect(),
            ends_s: vec![f64::INFINITY; links],
            missing: vec![0; operations],
        }
    }

    /// The operation at a place gets on a link for `busy_s` seconds; `in_order`: behind what the link carries. Does it overtake
    /// something of which the link has carried a part?
    ///
    /// # Panics
    /// If the link carries that operation.
    pub fn get_on(&mut self, (link, in_order): (usize, bool), place: usize, busy_s: f64, now: f64) -> bool {
        let of = &mut self.links[link];
        assert_ne!(of.carries, Some(place), "an operation is on link {link} twice");
        self.missing[place] += 1;
        of.loads[place] = OnLink { left_s: busy_s, began_s: None };
        of.waiting.insert(place);
        if of.carries.is_some_and(|carried| in_order || carried < place) {
            return false;
        }
        let (begun, overtaken) = (now > of.taken_s, of.left_behind(now));
        if let Some(overtaken) = overtaken {
            of.carries = None;
            of.waiting.insert(overtaken);
        }
        self.ends_s[link] = of.carry_next(now);
        overtaken.is_some() && begun
    }

    /// How many of the first so many links carry something.
    pub fn carrying(&self, links: usize) -> usize {
        self.links[..links].iter().filter(|link| link.carries.is_some()).count()
    }

    /// From now on the first so many links take `pace` seconds for each second of what they carry.
    pub fn change_pace(&mut self, links: usize, pace: f64, now: f64) {
        for (link, end_s) in self.links[..links].iter_mut().zip(&mut self.ends_s).filter(|(link, _)| link.pace != pace)
        {
            let carried = link.left_behind(now);
            (link.since_s, link.pace) = (now, pace);
            if let Some(place) = carried {
                *end_s = now + link.loads[place].left_s * pace;
            }
        }
    }

    /// The link that is the first to be through with something, and when. None: none carries anything.
    pub fn next_end(&self) -> Option<(usize, f64)> {
        let ends = self.ends_s.iter().copied().enumerate();
        let first = ends.fold((0, f64::INFINITY), |first, next| if next.1 < first.1 { next } else { first });
        first.1.is_finite().then_some(first)
    }

    /// That has come: a link is through with what it carries, and takes up the most urgent of what waits.
    ///
    /// # Panics
    /// If it carries nothing.
    pub fn end(&mut self, link: usize) -> Delivered {
        let (of, now) = (&mut self.links[link], self.ends_s[link]);
        let Some(place) = of.carries.take() else { panic!("link {link} carries nothing") };
        self.ends_s[link] = of.carry_next(now);
        self.missing[place] -= 1;
        let began_s = of.loads[place].began_s.unwrap_or(now);
        Delivered { place, began_s, by_all: self.missing[place] == 0 }
    }
}

impl Link {
    /// What it carries, of which it has now done what it could since it was last looked at.
    fn left_behind(&mut self, now: f64) -> Option<usize> {
        let place = self.carries?;
        let left_s = &mut self.loads[place].left_s;
        *left_s = (*left_s - (now - self.since_s) / self.pace).max(0.0);
        Some(place)
    }

    /// Takes up the most urgent of what waits. When it will be through with that.
    fn carry_next(&mut self, now: f64) -> f64 {
        self.carries = self.waiting.take_first();
        (self.taken_s, self.since_s) = (now, now);
        let Some(place) = self.carries else { return f64::INFINITY };
        let load = &mut self.loads[place];
        load.began_s.get_or_insert(now);
        now + load.left_s * self.pace
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivered(place: usize, began_s: f64, by_all: bool) -> Delivered {
        Delivered { place, began_s, by_all }
    }

    #[test]
    fn what_is_more_urgent_overtakes_and_the_rest_comes_later() {
        let mut links = Links::new(1, 200);
        assert_eq!(links.next_end(), None);
        assert!(!links.get_on((0, false), 100, 4.0, 0.0));
        assert_eq!(links.next_end(), Some((0, 4.0)));
        assert!(links.get_on((0, false), 30, 2.0, 1.0));
        assert_eq!(links.next_end(), Some((0, 3.0)), "after a second of the first");
        assert!(!links.get_on((0, false), 199, 1.0, 2.0));
        assert_eq!(links.end(0), delivered(30, 1.0, true));
        assert_eq!(links.next_end(), Some((0, 6.0)), "three seconds of the first are left");
        assert_eq!(links.end(0), delivered(100, 0.0, true));
        assert_eq!((links.next_end(), links.end(0)), (Some((0, 7.0)), delivered(199, 6.0, true)));
        assert_eq!(links.next_end(), None);
    }

    #[test]
    fn what_is_in_order_waits_and_what_has_sent_nothing_is_not_overtaken() {
        let mut links = Links::new(1, 9);
        links.get_on((0, false), 5, 4.0, 0.0);
        assert!(!links.get_on((0, true), 2, 1.0, 1.0));
        assert_eq!(links.next_end(), Some((0, 4.0)));
        assert_eq!((links.end(0), links.next_end()), (delivered(5, 0.0, true), Some((0, 5.0))));
        assert!(!links.get_on((0, false), 1, 1.0, 4.0), "the other one has just begun");
        assert_eq!((links.next_end(), links.end(0)), (Some((0, 5.0)), delivered(1, 4.0, true)));
    }

    #[test]
    fn what_is_under_way_goes_on_at_another_pace() {
        let mut links = Links::new(2, 2);
        links.get_on((0, false), 1, 4.0, 0.0);
        links.get_on((1, false), 1, 4.0, 0.0);
        assert_eq!([links.carrying(1), links.carrying(2)], [1, 2]);
        links.change_pace(1, 2.0, 1.0);
        assert_eq!(links.next_end(), Some((1, 4.0)), "the second link is as it was");
        assert!(links.get_on((0, false), 0, 1.0, 3.0), "it overtakes what the link has carried, whatever its pace");
        assert_eq!((links.end(1), links.end(0)), (delivered(1, 0.0, false), delivered(0, 3.0, true)));
        // Of four seconds one has passed, and two more at half the pace: at 5 s two are left, of which one passes until 7.
        links.change_pace(1, 1.0, 7.0);
        assert_eq!((links.next_end(), links.end(0)), (Some((0, 8.0)), delivered(1, 0.0, true)));
        assert_eq!(links.carrying(2), 0);
    }

    #[test]
    fn an_operation_is_through_when_all_its_links_are() {
        let mut links = Links::new(2, 2);
        links.get_on((0, false), 0, 1.0, 0.0);
        links.get_on((1, false), 0, 2.0, 0.0);
        links.get_on((1, false), 1, 1.0, 0.0);
        assert_eq!((links.next_end(), links.end(0)), (Some((0, 1.0)), delivered(0, 0.0, false)));
        assert_eq!((links.next_end(), links.end(1)), (Some((1, 2.0)), delivered(0, 0.0, true)));
        assert_eq!((links.next_end(), links.end(1)), (Some((1, 3.0)), delivered(1, 2.0, true)));
    }
}

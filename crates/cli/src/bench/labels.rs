//! What of a panel was not real, in the words that stand beside its place wherever numbers are told. Pure.

use super::summary::{Group, Panel};

impl Panel {
    /// The heading with everything that was not real.
    pub fn labelled_title(&self) -> String {
        match &self.labels[..] {
            [] => self.title(),
            labels => format!("{} ({})", self.title(), labels.join(", ")),
        }
    }

    /// The same in a word or two, behind the name of a place: `, replayed, emulated`. Nothing where all was real.
    pub fn in_short(&self) -> &'static str {
        match (self.setting.is_replayed(), self.setting.network.is_some()) {
            (true, true) => ", replayed, emulated",
            (true, false) => ", replayed",
            (false, true) => ", emulated",
            (false, false) => "",
        }
    }

    /// Do the workers of one of its groups compute on shared cores, which carry their emulated links as well? Then its
    /// throughputs decide nothing.
    pub fn is_crowded(&self, group: &Group) -> bool {
        self.setting.computes_on_its_links() && !group.labels.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::super::cell::Compute;
    use super::super::summary::{panels, samples};

    #[test]
    fn what_was_not_real_stands_beside_the_place() {
        let panels = panels(&samples::study(), 2);
        let [here, in_box] = &panels[..] else { panic!("{} panels", panels.len()) };
        assert_eq!((here.labelled_title(), here.in_short()), (here.title(), ""));
        let labels = "4 workers per host (replayed: rtx2080ti, emulated: 10GbE)";
        assert!(in_box.labelled_title().ends_with(labels), "{}", in_box.labelled_title());
        let mut changed = in_box.clone();
        assert_eq!(changed.in_short(), ", replayed, emulated");
        changed.setting.network = None;
        assert_eq!(changed.in_short(), ", replayed");
        changed.setting = in_box.setting.clone();
        changed.setting.compute = Compute::Real;
        assert_eq!(changed.in_short(), ", emulated");
    }
}

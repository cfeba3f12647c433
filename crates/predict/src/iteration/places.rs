/// A set of places in the dispatchers' order.
pub(super) struct Places(Vec<u64>);

impl Places {
    /// An empty one, of those below `end`.
    pub fn up_to(end: usize) -> Places {
        Places(vec![0; end.div_ceil(64)])
    }

    pub fn insert(&mut self, place: usize) {
        self.0[place / 64] |= 1 << (place % 64);
    }

    /// The most urgent one, which is in it no more.
    pub fn take_first(&mut self) -> Option<usize> {
        let index = self.0.iter().position(|&word| word != 0)?;
        let word = &mut self.0[index];
        let place = index * 64 + word.trailing_zeros() as usize;
        // Without its lowest bit.
        *word &= *word - 1;
        Some(place)
    }
}

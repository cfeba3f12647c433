//! Copies of what peers are about to read, in memory that they map.
//!
//! A reference to private memory costs its reader a system call that finds and pins every page of it; what it maps it combines
//! from where it lies. So the sender copies what is to be read while that is little enough to be in a cache when it is
//! read. The rest is referred to where it lies.

use std::collections::HashMap;
use std::ptr::NonNull;

use foldhash::fast::FixedState;
use paceline_engine::frame::Header;
use paceline_engine::{LinkTraits, Region};
use paceline_fabric::Link;
use paceline_plan::OperationKey;

use crate::buffer::Memory;

/// So much may be staged at once by all operations of a rank. With less, the tiles of a large all-reduce on two ranks do not all
/// find room; more gains nothing (docs/benchmarking.md, "Large messages in shared memory").
const STAGED_MAX: usize = 16 << 20;

/// A long message is copied and read in pieces: while its reader has one, the next is copied. (A multiple of any element.)
pub(crate) const PIECE_BYTES: usize = 256 << 10;

/// What an engine must know of a link.
pub(crate) fn traits_of(link: &dyn Link) -> LinkTraits {
    LinkTraits {
        reference_above: link.reference_above(),
        any_memory: link.any_memory(),
        reference_at_most: link.peer_maps().then_some(PIECE_BYTES),
    }
}

/// The copies of all operations of a rank, each kept until all its readers have acknowledged it.
#[derive(Default)]
pub(crate) struct Staging {
    copies: Vec<Option<Staged>>,
    /// Places of `copies` that have none.
    free: Vec<usize>,
    readers: HashMap<Reader, usize, FixedState>,
    /// What has been copied in this look at what there is to send, during which no operation's memory changes.
    recent: Vec<(Region, usize)>,
    bytes: usize,
}

struct Staged {
    memory: Memory,
    readers: usize,
}

/// A reference, as its frame and its acknowledgement name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Reader {
    peer: usize,
    key: OperationKey,
    tile: u32,
    message: u32,
    offset: u32,
}

impl Reader {
    fn of(peer: usize, header: &Header) -> Reader {
        Reader { peer, key: header.key(), tile: header.tile, message: header.message, offset: header.offset }
    }
}

impl Staging {
    /// From now on the memory of operations may be other than it was.
    pub fn look(&mut self) {
        self.recent.clear();
    }

    /// Where the peer of this frame is to read a region: the copy that another one reads, or room for a new one, into which
    /// `fill` writes. None if there is too much already, or `shared` has no memory of so many bytes.
    pub fn stage(
        &mut self,
        (peer, header): (usize, &Header),
        region: &Region,
        shared: impl FnOnce(usize) -> Option<Memory>,
        fill: impl FnOnce(NonNull<u8>),
    ) -> Option<NonNull<u8>> {
        let known = self.recent.iter().find(|(known, _)| known == region).map(|(_, place)| *place);
        let place = known.or_else(|| {
            let memory = if self.bytes + region.bytes <= STAGED_MAX { shared(region.bytes) } else { None }?;
            fill(memory.start());
            self.bytes += memory.bytes();
            let place = self.free.pop().unwrap_or_else(|| {
                self.copies.push(None);
                self.copies.len() - 1
            });
            self.copies[place] = Some(Staged { memory, readers: 0 });
            self.recent.push((*region, place));
            Some(place)
        })?;
        let copy = self.copies[place].as_mut()?;
        copy.readers += 1;
        self.readers.insert(Reader::of(peer, header), place);
        Some(copy.memory.start())
    }

    /// A peer has read what a frame referred to. What the copy lay in, if there was one and nobody else reads it.
    pub fn read(&mut self, peer: usize, header: &Header) -> Option<Memory> {
        if self.readers.is_empty() {
            return None;
        }
        let place = self.readers.remove(&Reader::of(peer, header))?;
        self.recent.clear();
        let copy = self.copies[place].as_mut()?;
        copy.readers -= 1;
        if copy.readers > 0 {
            return None;
        }
        self.free.push(place);
        let memory = self.copies[place].take()?.memory;
        self.bytes -= memory.bytes();
        Some(memory)
    }
}

#[cfg(test)]
mod tests {
    use paceline_collective::Space;
    use paceline_engine::OpId;
    use paceline_engine::frame::Kind;

    use super::*;

    fn region(offset: usize, bytes: usize) -> Region {
        Region { op: OpId::default(), space: Space::Input, offset, bytes }
    }

    fn header(message: u32) -> Header {
        Header { message, ..Header::new(Kind::Reference, OperationKey::default()) }
    }

    fn memory(bytes: usize) -> Option<Memory> {
        Some(Memory::private(bytes).expect("memory"))
    }

    /// Stages for a peer without writing anything; says whether a copy was to be made.
    fn stage(staging: &mut Staging, peer: usize, message: u32, region: Region) -> (Option<NonNull<u8>>, bool) {
        let mut filled = false;
        let copy = staging.stage((peer, &header(message)), &region, memory, |_| filled = true);
        (copy, filled)
    }

    #[test]
    fn peers_share_a_copy_while_nothing_can_have_changed() {
        let mut staging = Staging::default();
        staging.look();
        let (first, second) = (region(0, 100), region(100, 100));
        let (copy, filled) = stage(&mut staging, 1, 0, first);
        assert!(copy.is_some() && filled);
        assert_eq!(stage(&mut staging, 2, 0, first), (copy, false));
        let (other, filled) = stage(&mut staging, 2, 1, second);
        assert!(other != copy && filled);
        staging.look();
        let (again, filled) = stage(&mut staging, 3, 0, first);
        assert!(again != copy && filled, "the first one is still read, and may be what the region was before");
    }

    #[test]
    fn a_copy_is_free_when_all_its_readers_have_read_it() {
        let mut staging = Staging::default();
        let copy = stage(&mut staging, 1, 7, region(0, 100)).0.expect("a copy");
        stage(&mut staging, 2, 7, region(0, 100));
        assert!(staging.read(1, &header(6)).is_none() && staging.read(3, &header(7)).is_none(), "nobody's");
        assert!(staging.read(1, &header(7)).is_none(), "the other one has not");
        assert!(staging.read(1, &header(7)).is_none(), "twice");
        let memory = staging.read(2, &header(7)).expect("nobody reads it any more");
        assert_eq!((memory.start(), staging.bytes), (copy, 0));
        // Its place is another one's, who has other readers.
        stage(&mut staging, 1, 8, region(0, 50));
        assert!(staging.read(2, &header(8)).is_none() && staging.read(1, &header(8)).is_some());
        assert_eq!(staging.copies.len(), 1);
    }

    #[test]
    fn too_much_is_not_staged_before_some_has_been_read() {
        let mut staging = Staging::default();
        let quarter = STAGED_MAX / 4;
        for message in 0..4 {
            assert!(stage(&mut staging, 1, message, region(message as usize * quarter, quarter)).1);
        }
        assert_eq!(stage(&mut staging, 1, 4, region(0, 8)), (None, false));
        assert!(staging.read(1, &header(2)).is_some());
        assert!(stage(&mut staging, 1, 4, region(0, quarter)).1);
        // Where there is no memory to share, nothing is counted.
        assert!(staging.read(1, &header(3)).is_some());
        assert!(staging.stage((1, &header(5)), &region(0, 8), |_| None, |_| ()).is_none());
        assert_eq!(staging.bytes, STAGED_MAX - quarter);
    }
}

//! The addresses of this host.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::environment::Network;

/// One address of one interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// As `ip link` calls it.
    pub name: String,
    /// One of its addresses.
    pub address: IpAddr,
}

/// All addresses of all interfaces that are up, except link-local IPv6 ones (they mean nothing on another host), in the
/// system's order: the order in which other ranks try them.
///
/// # Errors
/// The operating system does not list them.
pub fn interfaces() -> io::Result<Vec<Interface>> {
    let mut first = std::ptr::null_mut();
    // SAFETY: `first` is a place for the list's head.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut next = first;
    // SAFETY: getifaddrs gave a list that ends with null and stays until freeifaddrs.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        // SAFETY: `ifa_addr` is null or points to an address of the length that its family implies (getifaddrs(3)).
        let address = unsafe { address(entry.ifa_addr) };
        if let Some(address) = address.filter(|address| is_up(entry) && !is_link_local(*address)) {
            // SAFETY: `ifa_name` is a C string of the list.
            let name = unsafe { std::ffi::CStr::from_ptr(entry.ifa_name) }.to_string_lossy().into_owned();
            found.push(Interface { name, address });
        }
    }
    // SAFETY: `first` came from getifaddrs, and nothing refers to the list any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}

/// Is this an address of this host?
pub(crate) fn is_own(address: IpAddr, interfaces: &[Interface]) -> bool {
    let address = address.to_canonical();
    address.is_loopback() || interfaces.iter().any(|interface| interface.address == address)
}

/// What lets ranks of other hosts in.
pub(crate) const ADMIT_OTHERS: &str = "give all ranks the same PACELINE_SECRET_FILE or PACELINE_SECRET, or, on a network \
                                       that you trust, --insecure (PACELINE_INSECURE=1)";

/// May a link lead to this address? Without a secret nothing proves who is at its other end, so only this host is
/// trusted unless the user says otherwise.
pub(crate) fn admission(address: IpAddr, interfaces: &[Interface], network: &Network) -> Result<(), String> {
    if network.admits_others() || is_own(address, interfaces) {
        return Ok(());
    }
    let address = address.to_canonical();
    Err(format!("{address} is another host, and without a shared secret nothing proves who is there; {ADMIT_OTHERS}"))
}

fn is_up(entry: &libc::ifaddrs) -> bool {
    entry.ifa_flags & libc::IFF_UP as u32 != 0
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// # Safety
/// `address` is null or points to an address of the length that its family implies.
unsafe fn address(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: by contract null or an address; every one begins with its family.
    match i32::from(unsafe { address.as_ref() }?.sa_family) {
        libc::AF_INET => {
            // SAFETY: the family says which it is; unaligned, as nobody promises its alignment.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from_bits(u32::from_be(v4.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_there_and_others_are_not_ours() {
        let interfaces = interfaces().expect("a list");
        let loopback = interfaces.iter().find(|interface| interface.address == IpAddr::from([127, 0, 0, 1]));
        assert_eq!(loopback.expect("every host has it").name, "lo");
        assert!(interfaces.iter().all(|interface| is_own(interface.address, &interfaces)));
        assert!(is_own("::ffff:127.0.0.1".parse().expect("an address"), &interfaces));
        // A documentation address (RFC 5737) that no host has.
        let elsewhere = IpAddr::from([203, 0, 113, 77]);
        assert!(!is_own(elsewhere, &interfaces));
        let refusal = admission(elsewhere, &interfaces, &Network::default()).expect_err("a stranger");
        assert!(refusal.contains("203.0.113.77") && refusal.contains("PACELINE_INSECURE=1"), "{refusal}");
        let secret = crate::security::Secret::generate().ok();
        for network in [Network { insecure: true, ..Network::default() }, Network { secret, ..Network::default() }] {
            assert_eq!(admission(elsewhere, &interfaces, &network), Ok(()));
        }
    }
}

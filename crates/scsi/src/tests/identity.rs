//! INQUIRY, vital product data and READ CAPACITY, byte by byte.

use super::*;

const NAA: [u8; 8] = [0x3f, 0xed, 0xcb, 0xa9, 0x87, 0x65, 0x43, 0x21];

fn fixture(block_size: u32) -> Fixture {
    let mut fixture = Fixture::with_block_size(block_size);
    fixture.target = Target::new(TargetConfig::new(NAME).with_portal_group_tag(2));
    let options = LunOptions::default().with_serial("SERIAL-1").with_naa(u64::from_be_bytes(NAA));
    fixture.target.add_lun(0, fixture.device.clone(), options).unwrap();
    fixture.nexus = ready(fixture.target.nexus(INITIATOR));
    fixture
}

fn vpd(fixture: &Fixture, page: u8) -> Vec<u8> {
    let data = fixture.data(&[0x12, 1, page, 1, 0, 0], 256);
    let len = usize::from(u16::from_be_bytes([data[2], data[3]]));
    assert_eq!((data[1], data.len()), (page, 4 + len), "PAGE LENGTH of {page:#x}");
    data
}

#[test]
fn standard_inquiry() {
    let data = fixture(512).data(&[0x12, 0, 0, 1, 4, 0], 260);
    assert_eq!(data.len(), 96);
    assert_eq!(data[..8], [0x00, 0x00, 0x06, 0x32, 91, 0x18, 0, 0x02], "NORMACA, TPGS, 3PC");
    assert_eq!(&data[8..36], b"ENKAKU  VIRTUAL DISK    1   ");
    assert!(data[36..58].iter().all(|b| *b == 0));
    assert_eq!(data[58..66], [0x00, 0xa0, 0x09, 0x60, 0x04, 0x60, 0x04, 0xc0]);
    assert!(data[66..].iter().all(|b| *b == 0));
}

#[test]
fn every_allocation_length_cuts_without_an_error() {
    let fixture = fixture(512);
    let whole = fixture.data(&[0x12, 0, 0, 2, 0, 0], 512);
    for len in 0..=255u8 {
        let response = fixture.run(&[0x12, 0, 0, 0, len, 0], "", 255);
        assert_eq!(response.data_in, whole[..whole.len().min(len.into())]);
        assert_eq!(response.data_len_wanted, response.data_in.len() as u64);
    }
    let response = fixture.run(&[0x12, 0, 0, 0, 96, 0], "", 10);
    assert_eq!((response.data_in.len(), response.data_len_wanted), (10, 96));
}

#[test]
fn refused_pages() {
    let fixture = fixture(512);
    assert_invalid_cdb(&fixture.run(&[0x12, 0, 1, 1, 0, 0], "", 256), 2, 7);
    assert_invalid_cdb(&fixture.run(&[0x12, 1, 0xb3, 1, 0, 0], "", 256), 2, 7);
    assert_invalid_cdb(&fixture.run(&[0x12, 2, 0, 1, 0, 0], "", 256), 1, 1);
}

#[test]
fn supported_pages_are_ascending_and_exist() {
    let fixture = fixture(512);
    let pages = vpd(&fixture, 0);
    assert_eq!(pages, [0, 0, 0, 8, 0x00, 0x80, 0x83, 0x86, 0x8f, 0xb0, 0xb1, 0xb2]);
    pages[4..].iter().for_each(|page| drop(vpd(&fixture, *page)));
}

#[test]
fn unit_serial_number() {
    assert_eq!(vpd(&fixture(512), 0x80), b"\0\x80\0\x08SERIAL-1");
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-4.4.2
//= type=test
//# The SCSI device name is defined to be the iSCSI name of the node and MUST be used in the iSCSI
//# protocol.
//= https://www.rfc-editor.org/rfc/rfc7143#section-4.4.2
//= type=test
//# The SCSI port name MUST be used in iSCSI.
//= https://www.rfc-editor.org/rfc/rfc7143#section-4.4.2
//= type=test
//# When used in SCSI parameter data, the SCSI port name MUST be encoded as:
#[test]
fn device_identification() {
    let mut expected = vec![0, 0x83, 0, 0];
    expected.extend([0x01, 0x03, 0, 8]);
    expected.extend(NAA);
    expected.extend([0x02, 0x01, 0, 16]);
    expected.extend(b"ENKAKU  SERIAL-1");
    expected.extend([0x51, 0x94, 0, 4, 0, 0, 0, 1]);
    expected.extend([0x53, 0x98, 0, 40]);
    expected.extend(b"iqn.2026-11.org.example:disk,t,0x0002\0\0\0");
    expected.extend([0x51, 0x95, 0, 4, 0, 0, 0, 2]);
    expected.extend([0x53, 0xa8, 0, 32]);
    expected.extend(b"iqn.2026-11.org.example:disk\0\0\0\0");
    expected[3] = expected.len() as u8 - 4;
    assert_eq!(vpd(&fixture(512), 0x83), expected);
}

#[test]
fn identities_differ_and_stay() {
    let identity = |name: &str, lun: u16| {
        let target = Target::new(TargetConfig::new(name));
        let memory = Arc::new(MemoryDevice::new(1 << 20, 512).unwrap());
        target.add_lun(lun, memory, LunOptions::default()).unwrap();
        let nexus = target.nexus(INITIATOR);
        let data = run_on(&nexus, u64::from(lun) << 48, &[0x12, 1, 0x83, 0, 255, 0], "", 255);
        assert_eq!(data.data_in[8] >> 4, 3, "locally assigned");
        data.data_in[8..16].to_vec()
    };
    assert_eq!(identity("a", 0), identity("a", 0));
    assert_ne!(identity("a", 0), identity("a", 1));
    assert_ne!(identity("a", 0), identity("b", 0));
}

#[test]
fn block_limits() {
    for (block_size, transfer, write_same, unmap) in
        [(512, 32768u32, 32768u64, 1_048_576u32), (4096, 4096, 4096, 131_072)]
    {
        let page = vpd(&fixture(block_size), 0xb0);
        assert_eq!(page.len(), 64);
        assert_eq!(page[4..8], [1, 255, 0, 1], "WSNZ, compare and write, granularity");
        assert_eq!(page[8..12], transfer.to_be_bytes());
        assert_eq!(page[12..16], (transfer / 16).to_be_bytes());
        assert_eq!(page[16..20], [0; 4], "prefetch");
        assert_eq!(page[20..24], unmap.to_be_bytes());
        assert_eq!(page[24..28], 256u32.to_be_bytes());
        assert_eq!(page[28..36], [0, 0, 0, 1, 0x80, 0, 0, 0]);
        assert_eq!(page[36..44], write_same.to_be_bytes());
        assert!(page[44..].iter().all(|b| *b == 0), "no atomic writes");
    }
}

#[test]
fn characteristics_and_provisioning() {
    let fixture = fixture(512);
    let page = vpd(&fixture, 0xb1);
    assert_eq!((page.len(), &page[4..8]), (64, &[0, 1, 0, 0x40][..]));
    assert_eq!(vpd(&fixture, 0xb2), [0, 0xb2, 0, 4, 0, 0xe4, 2, 0]);
}

#[test]
fn capacity() {
    for block_size in [512u32, 4096] {
        let fixture = fixture(block_size);
        let mut expected = vec![0, 0, 0x0f, 0xff];
        expected.extend(block_size.to_be_bytes());
        assert_eq!(fixture.data(&[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], 8), expected);
        let capacity =
            |len: u8| fixture.data(&[0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, len, 0, 0], 96);
        let mut expected = vec![0, 0, 0, 0, 0, 0, 0x0f, 0xff];
        expected.extend(block_size.to_be_bytes());
        expected.extend([0, 0, 0xc0, 0]); // LBPME, LBPRZ
        expected.resize(32, 0);
        assert_eq!(capacity(96), expected);
        (0..=32).for_each(|len| assert_eq!(capacity(len), expected[..usize::from(len)]));
    }
}

#[test]
fn a_large_disk_needs_the_long_form() {
    let fixture = Fixture::on(Arc::new(MemoryDevice::new(4 << 40, 512).unwrap()));
    assert_eq!(
        fixture.data(&[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], 8),
        [255, 255, 255, 255, 0, 0, 2, 0]
    );
    let data = fixture.data(&[0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0], 32);
    assert_eq!(data[..8], (8u64 << 30).wrapping_sub(1).to_be_bytes());
    let lba = (8u64 << 30) - 1;
    assert_good(&fixture.run(&cdb(0x8a, 0, lba, 1), vec![1; 512], 0));
    assert_eq!(fixture.run(&cdb(0x88, 0, lba, 1), "", 512).data_in, vec![1; 512]);
    let beyond = fixture.run(&cdb(0x88, 0, lba + 1, 1), "", 512);
    assert_sense(&beyond, 0x5, 0x21, 0x00);
    assert_eq!(beyond.sense.unwrap().information, Some(lba + 1));
}

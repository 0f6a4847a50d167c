//! Queries: DevAttrQry and DevGetNext (RFC 4171 §5.6.5.2, §5.6.5.3). They change nothing.

use std::net::IpAddr;

use super::super::attr::{ATTR_HEADER_LEN, Attr, PortalKey, Tag};
use super::super::message::{Request, Response};
use super::super::pdu::Status;
use super::directory::Directory;
use super::object::{Class, Object, View, is_type};

/// An answer as it grows.
struct Answer {
    attrs: Vec<Attr>,
    bytes: usize,
    bytes_max: usize,
}

impl Answer {
    fn push(&mut self, attr: Attr) -> Result<(), Status> {
        self.bytes += ATTR_HEADER_LEN + attr.value.len().next_multiple_of(4);
        if self.bytes > self.bytes_max || self.attrs.len() >= super::super::attr::ATTRS_MAX {
            return Err(Status::BUSY);
        }
        self.attrs.push(attr);
        Ok(())
    }
}

/// The next free numbers are asked for without a key (§6.2.8).
const VIRTUAL: [Tag; 6] = [
    Tag::ENTITY_NEXT_INDEX,
    Tag::PORTAL_NEXT_INDEX,
    Tag::NODE_NEXT_INDEX,
    Tag::PG_NEXT_INDEX,
    Tag::DDS_NEXT_ID,
    Tag::DD_NEXT_ID,
];

impl Directory {
    pub(super) fn query(&self, request: &Request, source: &str) -> Response {
        let mut response = Response::new(request.function, Status::SUCCESS);
        response.key.clone_from(&request.key);
        match self.found(request, source) {
            Ok(found) => response.operating = found,
            Err(status) => response.status = status,
        }
        response
    }

    fn found(&self, request: &Request, source: &str) -> Result<Vec<Attr>, Status> {
        let view = View::new(self, source);
        let bytes_max = self.settings.limits.response_bytes_max;
        let mut answer = Answer { attrs: Vec::new(), bytes: 0, bytes_max };
        let groups = groups(&request.operating);
        if request.key.is_empty() {
            for tags in &groups {
                if let [tag] = tags[..]
                    && VIRTUAL.contains(&tag)
                {
                    answer.push(Attr::new_number(tag, self.next_number(tag)))?;
                    continue;
                }
                let Some(class) = Class::of(tags[0]) else { continue };
                for object in view.all(class) {
                    tell(&view, object, tags, &mut answer)?;
                }
            }
            return Ok(answer.attrs);
        }
        let class = class_of(&request.key)?;
        for object in view.candidates(class, &request.key) {
            if !view.matches(object, &request.key) {
                continue;
            }
            if request.operating.is_empty() {
                for class in Class::ALL {
                    for related in view.related(object, class) {
                        for attr in view.attrs(related) {
                            answer.push(attr)?;
                        }
                    }
                }
                continue;
            }
            for tags in &groups {
                let Some(class) = Class::of(tags[0]) else { continue };
                for related in view.related(object, class) {
                    tell(&view, related, tags, &mut answer)?;
                }
            }
        }
        Ok(answer.attrs)
    }

    fn next_number(&self, tag: Tag) -> u32 {
        match tag {
            Tag::DD_NEXT_ID => self.domains.free_domain().unwrap_or(0),
            Tag::DDS_NEXT_ID => self.domains.free_set().unwrap_or(0),
            _ => self.next_index,
        }
    }

    pub(super) fn next(&self, request: &Request, source: &str) -> Response {
        let mut response = Response::new(request.function, Status::SUCCESS);
        match self.found_next(request, source) {
            Ok((key, operating)) => (response.key, response.operating) = (key, operating),
            Err(status) => response.status = status,
        }
        response
    }

    fn found_next(
        &self,
        request: &Request,
        source: &str,
    ) -> Result<(Vec<Attr>, Vec<Attr>), Status> {
        let class = class_of(&request.key)?;
        if request.operating.iter().any(|attr| Class::of(attr.tag) != Some(class)) {
            return Err(Status::INVALID_QUERY);
        }
        let view = View::new(self, source);
        let scope: Vec<Attr> =
            request.operating.iter().filter(|attr| !attr.is_empty()).cloned().collect();
        let mut objects = view.all(class);
        objects.sort_by_key(|object| object.order());
        let after = after(&request.key)?;
        let next = objects.into_iter().find(|object| {
            let (number, portal, name) = object.order();
            let is_behind =
                after.as_ref().is_none_or(|(after_number, after_portal, after_name)| {
                    (number, portal, name) > (*after_number, *after_portal, after_name.as_str())
                });
            is_behind && view.matches(*object, &scope)
        });
        let next = next.ok_or(Status::NO_SUCH_ENTRY)?;
        let attrs = view.attrs(next);
        let keys = attrs.iter().filter(|attr| request.key.iter().any(|key| key.tag == attr.tag));
        let key = keys.cloned().collect();
        if request.operating.is_empty() {
            return Ok((key, attrs)); // as for a query (§5.7.5.2); Open-iSNS lists by it
        }
        let tags = request.operating.iter().map(|attr| attr.tag).collect::<Vec<_>>();
        let asked = tags.iter().flat_map(|tag| attrs.iter().filter(move |attr| attr.tag == *tag));
        Ok((key, asked.cloned().collect()))
    }
}

/// The attributes of a key are of one object (§5.6.5.2).
fn class_of(key: &[Attr]) -> Result<Class, Status> {
    let first = key.first().and_then(|attr| Class::of(attr.tag)).ok_or(Status::INVALID_QUERY)?;
    let is_one = key.iter().all(|attr| Class::of(attr.tag) == Some(first));
    let typed = key.iter().filter(|attr| attr.tag == Tag::NODE_TYPE && !attr.is_empty());
    if is_one && typed.clone().all(is_type) { Ok(first) } else { Err(Status::INVALID_QUERY) }
}

/// Tags that stand together and are of one kind of object.
fn groups(operating: &[Attr]) -> Vec<Vec<Tag>> {
    let mut groups: Vec<Vec<Tag>> = Vec::new();
    for attr in operating {
        let same = |tags: &&mut Vec<Tag>| Class::of(tags[0]) == Class::of(attr.tag);
        match groups.last_mut().filter(same) {
            // A key again begins the same object again; once is enough.
            Some(tags) if tags.contains(&attr.tag) => {}
            Some(tags) => tags.push(attr.tag),
            None => groups.push(vec![attr.tag]),
        }
    }
    groups
}

fn tell<'d>(
    view: &View<'d>,
    object: Object<'d>,
    tags: &[Tag],
    answer: &mut Answer,
) -> Result<(), Status> {
    let attrs = view.attrs(object);
    for tag in tags {
        for attr in attrs.iter().filter(|attr| attr.tag == *tag) {
            answer.push(attr.clone())?;
        }
    }
    Ok(())
}

/// The place behind which DevGetNext goes on; nothing: at the beginning.
fn after(key: &[Attr]) -> Result<Option<(u32, PortalKey, String)>, Status> {
    if key.iter().all(Attr::is_empty) {
        return Ok(None);
    }
    let wrong = |_| Status::INVALID_QUERY;
    let mut place = (0, PortalKey { address: IpAddr::from([0_u16; 8]), port: 0 }, String::new());
    for attr in key {
        match attr.tag {
            Tag::ENTITY_ID | Tag::ISCSI_NAME | Tag::PG_ISCSI_NAME => {
                place.2 = attr.text().map_err(wrong)?.to_ascii_lowercase();
            }
            Tag::PORTAL_ADDRESS | Tag::PG_PORTAL_ADDRESS => {
                place.1.address = attr.address().map_err(wrong)?;
            }
            Tag::PORTAL_PORT | Tag::PG_PORTAL_PORT => {
                place.1.port = attr.number().map_err(wrong)?
            }
            Tag::DD_ID | Tag::DDS_ID => place.0 = attr.number().map_err(wrong)?,
            _ => return Err(Status::INVALID_QUERY),
        }
    }
    Ok(Some(place))
}

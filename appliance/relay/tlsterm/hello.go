package tlsterm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
)

// Bounds of a ClientHello: with post-quantum keys it has about 2 KiB.
const (
	maxHello    = 16 << 10
	maxRecords  = 64 // that it is cut into
	recordSize  = 5  // header of a record (RFC 8446, 5.1)
	messageSize = 4  // header of a handshake message (RFC 8446, 4)
)

// errNoHello means that a client does not begin with TLS.
var errNoHello = errors.New("what the client sends is no ClientHello of TLS")

// ReadHello reads the first message of a client and gives the server name that it asks for, in lower case, "" when
// it names none. read has all bytes that were read, for the endpoint that the client is passed on to.
func ReadHello(client io.Reader) (name string, read []byte, err error) {
	var message []byte
	for range maxRecords {
		header := make([]byte, recordSize)
		n, err := io.ReadFull(client, header)
		read = append(read, header[:n]...)
		if err != nil {
			return "", read, err
		}
		size := int(binary.BigEndian.Uint16(header[3:]))
		if header[0] != 22 || header[1] != 3 || size == 0 || len(message)+size > maxHello+messageSize {
			return "", read, errNoHello
		}
		at := len(read)
		read = append(read, make([]byte, size)...)
		n, err = io.ReadFull(client, read[at:])
		if read = read[:at+n]; err != nil {
			return "", read, err
		}
		message = append(message, read[at:]...)
		if len(message) < messageSize {
			continue
		}
		switch whole := int(message[1])<<16 | int(message[2])<<8 | int(message[3]); {
		case message[0] != 1 || whole > maxHello:
			return "", read, errNoHello
		case len(message) >= messageSize+whole:
			name, err := ServerName(message[messageSize : messageSize+whole])
			return name, read, err
		}
	}
	return "", read, errNoHello
}

// unrecognizedName is the alert of that name, fatal, in a record of its own (RFC 6066, 3; RFC 8446, 6).
var unrecognizedName = []byte{21, 3, 3, 0, 2, 2, 112}

// RefuseName sends a client, whose ClientHello was read, the alert unrecognized_name, and closes its connection.
func RefuseName(client net.Conn) {
	_, _ = client.Write(unrecognizedName) // the client may be gone
	_ = client.Close()
}

// ServerName gives the host name in the body of a ClientHello (RFC 8446, 4.1.2; RFC 6066, 3), in lower
// case; "" when there is none. It refuses two: others may choose the other one.
func ServerName(hello []byte) (string, error) {
	p := &parser{rest: hello}
	p.take(2 + 32)          // version, random
	p.take(p.number(1))     // session
	p.take(p.number(2))     // cipher suites
	p.take(p.number(1))     // compression
	if p.bad || p.empty() { // a client of TLS 1.2 may have no extensions
		return "", p.err("the fields before the extensions")
	}
	extensions := p.part(2)
	if p.bad || !p.empty() {
		return "", errors.New("ClientHello: more than its extensions, or less")
	}
	name, found := "", false
	for !extensions.empty() {
		kind := extensions.number(2)
		content := extensions.part(2)
		if extensions.bad {
			return "", extensions.err("an extension")
		}
		if kind != 0 {
			continue
		}
		if found {
			return "", errors.New("ClientHello: two extensions with server names")
		}
		found = true
		var err error
		if name, err = hostName(content); err != nil {
			return "", err
		}
	}
	return name, nil
}

// hostName reads a list of server names.
func hostName(content *parser) (name string, err error) {
	list := content.part(2)
	if content.bad || !content.empty() || list.empty() {
		return "", errors.New("ClientHello: no list of server names where one is announced")
	}
	found := false
	for !list.empty() {
		kind := list.number(1)
		text := list.take(list.number(2))
		switch {
		case list.bad:
			return "", list.err("a server name")
		case kind != 0:
			continue
		case found:
			return "", errors.New("ClientHello: two host names")
		case len(text) == 0 || len(text) > 255:
			return "", fmt.Errorf("ClientHello: a host name of %d bytes", len(text))
		}
		for _, c := range text {
			if c <= ' ' || c >= 0x7f {
				return "", errors.New("ClientHello: a host name with other characters than those of names")
			}
		}
		name, found = strings.ToLower(string(text)), true
	}
	return name, nil
}

// parser takes fields off bytes. After one that is not whole it is bad and gives nothing.
type parser struct {
	rest []byte
	bad  bool
}

func (p *parser) empty() bool { return len(p.rest) == 0 }

func (p *parser) err(what string) error {
	if p.bad {
		return fmt.Errorf("ClientHello: it ends within %s", what)
	}
	return nil
}

// take takes n bytes.
func (p *parser) take(n int) []byte {
	if p.bad || n > len(p.rest) {
		p.bad, p.rest = true, nil
		return nil
	}
	taken := p.rest[:n]
	p.rest = p.rest[n:]
	return taken
}

// number takes a number of so many bytes, the highest first.
func (p *parser) number(size int) (n int) {
	for _, b := range p.take(size) {
		n = n<<8 | int(b)
	}
	return n
}

// part takes a vector whose length is a number of size bytes.
func (p *parser) part(size int) *parser { return &parser{rest: p.take(p.number(size)), bad: p.bad} }

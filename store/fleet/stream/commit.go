package stream

import (
	"bufio"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Kind is the type of a frame.
type Kind byte

// The kinds of frames.
const (
	// Change is a commit: Head has the value of the head that it has put.
	Change Kind = 'c'
	// Settings has the settings of the fleet, as its Head, which have changed.
	Settings Kind = 's'
	// State begins a state as a whole: Head and Mod are of the commit that left it. Objects frames follow, and End.
	State Kind = 'h'
	// Objects has some of the objects of a State, as its Ops.
	Objects Kind = 'o'
	// End ends a State.
	End Kind = 'e'
)

// Commit is one frame. Fields that its Kind has no use for are empty.
type Commit struct {
	Kind Kind
	// Mod is the modification revision of the head in etcd: the position of a commit.
	Mod int64
	// Head is the value of the head, Note the description of the commit by the store if the head does not have it.
	Head, Note []byte
	Ops        []Op
}

// Op puts a value, or removes it.
type Op struct {
	Key    string
	Value  []byte
	Remove bool
}

// maxFrame bounds a frame, in bytes: it is that of a large commit.
const maxFrame = 1<<30 + 1<<20

// ErrMalformed means that the stream has bytes that are not a frame.
var ErrMalformed = errors.New("the stream of commits cannot be read: it is damaged, or the core box has another version")

// AppendText appends a text with its length to b.
func AppendText[T string | []byte](b []byte, text T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

// AppendOp appends an operation to b.
func AppendOp(b []byte, op *Op) []byte {
	if op.Remove {
		return AppendText(append(b, '-'), op.Key)
	}
	return AppendText(AppendText(append(b, '+'), op.Key), op.Value)
}

// Append appends the frame of a commit to b.
func Append(b []byte, c *Commit) []byte {
	size := 1 + 3*binary.MaxVarintLen64 + len(c.Head) + len(c.Note)
	for i := range c.Ops {
		size += 1 + 2*binary.MaxVarintLen64 + len(c.Ops[i].Key) + len(c.Ops[i].Value)
	}
	body := make([]byte, 0, size)
	body = binary.AppendUvarint(append(body, byte(c.Kind)), uint64(c.Mod))
	body = AppendText(AppendText(body, c.Head), c.Note)
	for i := range c.Ops {
		body = AppendOp(body, &c.Ops[i])
	}
	return AppendText(b, body)
}

// Parser reads the parts of a body.
type Parser struct {
	rest []byte
	err  error
}

// NewParser returns a Parser of a body, which the results refer to.
func NewParser(body []byte) *Parser { return &Parser{rest: body} }

func (p *Parser) number() uint64 {
	n, size := binary.Uvarint(p.rest)
	if size <= 0 {
		p.rest, p.err = nil, ErrMalformed
		return 0
	}
	p.rest = p.rest[size:]
	return n
}

// Text reads a text.
func (p *Parser) Text() []byte {
	size := p.number()
	if size > uint64(len(p.rest)) {
		p.rest, p.err = nil, ErrMalformed
		return nil
	}
	part := p.rest[:size:size]
	p.rest = p.rest[size:]
	return part
}

// Ops reads the operations up to the end. The error is that of this call or of an earlier one.
func (p *Parser) Ops() (ops []Op, err error) {
	for len(p.rest) > 0 {
		op, mark := Op{Remove: p.rest[0] == '-'}, p.rest[0]
		p.rest = p.rest[1:]
		if op.Key = string(p.Text()); mark == '+' {
			op.Value = p.Text()
		} else if mark != '-' {
			return nil, ErrMalformed
		}
		ops = append(ops, op)
	}
	return ops, p.err
}

// parse is the inverse of Append, without the length.
func parse(body []byte) (*Commit, error) {
	if len(body) == 0 {
		return nil, ErrMalformed
	}
	p := NewParser(body[1:])
	c := &Commit{Kind: Kind(body[0]), Mod: int64(p.number()), Head: p.Text(), Note: p.Text()}
	var err error
	if c.Ops, err = p.Ops(); err != nil {
		return nil, err
	}
	return c, nil
}

// Decoder reads frames.
type Decoder struct {
	from  *bufio.Reader
	plain *bufio.Reader // nil: nothing was read yet
}

// NewDecoder returns a Decoder of a stream. It reads nothing yet.
func NewDecoder(from io.Reader) *Decoder { return &Decoder{from: bufio.NewReader(from)} }

// Next waits for the next frame. At the end of a stream, which may come at any time, it returns io.EOF or io.ErrUnexpectedEOF.
func (d *Decoder) Next() (*Commit, error) {
	if d.plain == nil {
		unpacked, err := gzip.NewReader(d.from)
		if err != nil {
			return nil, wrong(err)
		}
		d.plain = bufio.NewReader(unpacked)
	}
	size, err := binary.ReadUvarint(d.plain)
	if err != nil {
		return nil, wrong(err)
	}
	if size > maxFrame {
		return nil, ErrMalformed
	}
	var body bytes.Buffer // grows with the bytes that come, not by the length
	if _, err := io.CopyN(&body, d.plain, int64(size)); err != nil {
		return nil, wrong(err)
	}
	return parse(body.Bytes())
}

// wrong marks an error of damaged data as ErrMalformed; other errors, as the end of the stream, stay as they are.
func wrong(err error) error {
	if errors.Is(err, gzip.ErrHeader) || errors.Is(err, gzip.ErrChecksum) || isCorrupt(err) {
		return fmt.Errorf("%w (%w)", ErrMalformed, err)
	}
	return err
}

func isCorrupt(err error) bool {
	var corrupt flate.CorruptInputError
	var internal flate.InternalError
	return errors.As(err, &corrupt) || errors.As(err, &internal)
}

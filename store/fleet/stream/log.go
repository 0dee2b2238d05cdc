package stream

import (
	"bufio"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
)

const (
	// memberSize is the compressed size of a gzip member, in bytes, from which the next commit begins a new member.
	memberSize = 128 << 10
	// DefaultLimit is the default bound of a Log's compressed size, in bytes. The last member is kept even if it is larger.
	DefaultLimit = 16 << 20
)

// Position identifies a commit by the etcd modification revision of its head and by its ID.
type Position struct {
	Mod int64
	ID  string
}

var (
	// ErrBefore means that a position is older than the oldest commit of the Log.
	ErrBefore = errors.New("the commits after that one are not kept any more")
	// ErrOther means that the Log has a commit with another ID at that modification revision.
	ErrOther = errors.New("the commit at that position is another one")
	// ErrBehind means that a reader was too slow: the commits that it would read next were dropped.
	ErrBehind = errors.New("the reader fell behind what is kept")
)

// Log keeps the newest commits, encoded and compressed once for all readers, which copy its bytes. It is safe for concurrent use.
type Log struct {
	limit int

	mu      sync.Mutex
	members []*member
	pending []item // frames that are not encoded yet
	busy    bool   // a goroutine encodes
	size    int
	grown   chan struct{} // closed when there are more bytes to read
	closed  error
	packer  *gzip.Writer // compressor of the last member; only the encoding goroutine uses packer and out
	out     bytes.Buffer
}

// item is a frame to be encoded, with the ID of its commit; the ID is "" if the frame is not a commit.
type item struct {
	commit *Commit
	id     string
}

// member is one gzip member of the stream, with the commits in it.
type member struct {
	before Position   // the position before its first commit
	has    []Position // the positions of its commits, in order
	data   []byte     // compressed bytes; they are only appended to
	full   bool       // data is complete
	gone   bool
	next   *member
}

// NewLog returns an empty Log for commits after a position. It keeps at most limit compressed bytes.
func NewLog(at Position, limit int) *Log {
	return &Log{limit: limit, grown: make(chan struct{}), members: []*member{{before: at}}}
}

// Add appends the frame c: a commit, which must directly follow the last one, with the ID of its head, or a change of the settings (Settings), with
// the ID "". Add does not block: another goroutine encodes c, so the values in c must not change any more.
func (l *Log) Add(c *Commit, id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed != nil {
		return
	}
	l.pending = append(l.pending, item{c, id})
	if !l.busy {
		l.busy = true
		go l.encode()
	}
}

// encode compresses all pending commits and returns. It is the body of the encoding goroutine.
func (l *Log) encode() {
	for {
		l.mu.Lock()
		if len(l.pending) == 0 || l.closed != nil {
			l.busy, l.pending = false, nil
			l.signal()
			l.mu.Unlock()
			return
		}
		items, last := l.pending, l.members[len(l.members)-1]
		l.pending = nil
		l.mu.Unlock()
		for _, it := range items {
			last = l.pack(last, it)
		}
	}
}

// signal wakes all readers that wait for more. l.mu must be held.
func (l *Log) signal() {
	close(l.grown)
	l.grown = make(chan struct{})
}

// pack compresses one commit into the last member, or into a new one, and returns the member. Only the encoding goroutine calls it.
func (l *Log) pack(last *member, it item) *member {
	if len(last.data) >= memberSize {
		_ = l.packer.Close() // a bytes.Buffer takes all
		l.took(last, Position{}, true)
		fresh := &member{before: last.end()}
		l.mu.Lock()
		last.next = fresh
		l.members = append(l.members, fresh)
		l.mu.Unlock()
		last = fresh
	}
	switch {
	case l.packer == nil:
		l.packer, _ = gzip.NewWriterLevel(&l.out, flate.BestSpeed) // it is a level
	case len(last.data) == 0:
		l.packer.Reset(&l.out)
	}
	_, _ = l.packer.Write(Append(nil, it.commit))
	_ = l.packer.Flush()
	l.took(last, Position{it.commit.Mod, it.id}, false)
	return last
}

// end returns the position of the last commit in the member or, if the member is empty, of the last commit before it.
func (m *member) end() Position {
	if len(m.has) == 0 {
		return m.before
	}
	return m.has[len(m.has)-1]
}

// took appends the compressed bytes in l.out to a member, so that readers can copy them. It drops the oldest members while the Log is larger than its
// limit.
func (l *Log) took(m *member, at Position, full bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m.data = append(m.data, l.out.Bytes()...)
	l.size += l.out.Len()
	l.out.Reset()
	if m.full = full; at.ID != "" {
		m.has = append(m.has, at)
	}
	for l.size > l.limit && len(l.members) > 1 {
		first := l.members[0]
		first.gone = true
		l.size -= len(first.data)
		l.members = slices.Delete(l.members, 0, 1)
	}
	l.signal()
}

// Begin returns the position before the oldest commit.
func (l *Log) Begin() Position {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.members[0].before
}

// Prepend inserts the commits of another Log, which must end where l begins, before those of l. The error is ErrBefore if the two do not adjoin or
// exceed the limit, or the reason why l is closed. The other Log must not be used afterwards.
func (l *Log) Prepend(older *Log) error {
	older.mu.Lock()
	members, size := older.members, older.size
	older.mu.Unlock()
	last := members[len(members)-1]
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed != nil {
		return l.closed
	}
	if last.end() != l.members[0].before || l.size+size > l.limit {
		return ErrBefore
	}
	last.full, last.next = true, l.members[0]
	l.members = append(slices.Clone(members), l.members...)
	l.size += size
	return nil
}

// Seal waits until all commits are compressed, and completes the last member. Nothing may be added afterwards.
func (l *Log) Seal() {
	l.mu.Lock()
	for l.busy {
		grown := l.grown
		l.mu.Unlock()
		<-grown
		l.mu.Lock()
	}
	last := l.members[len(l.members)-1]
	l.mu.Unlock()
	if len(last.data) > 0 {
		_ = l.packer.Close()
		l.took(last, Position{}, true)
	}
}

// Close ends all readers with an error, and drops all commits.
func (l *Log) Close(why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed == nil {
		l.closed = why
		l.signal()
	}
}

// Reader reads the compressed stream of a Log from a position on.
type Reader struct {
	log *Log
	at  *member
	off int
}

// maxPiece bounds the bytes that one call of Next returns.
const maxPiece = 64 << 10

// Reader returns a Reader of the commits after a position. The first gzip member of its stream may contain commits before the position as well.
// Reader waits for commits that are being encoded.
func (l *Log) Reader(ctx context.Context, after Position) (*Reader, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		if l.closed != nil {
			return nil, l.closed
		}
		if after.Mod < l.members[0].before.Mod {
			return nil, ErrBefore
		}
		for i := len(l.members) - 1; i >= 0; i-- {
			if m := l.members[i]; m.before == after || slices.Contains(m.has, after) {
				return &Reader{log: l, at: m}, nil
			}
		}
		if !l.busy {
			return nil, ErrOther
		}
		grown := l.grown
		l.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-grown:
		}
		l.mu.Lock()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
}

// Next waits for the next bytes of the stream and returns them. The caller must not change them. The error is ErrBehind, the reason why the Log was
// closed, or the error of ctx.
func (r *Reader) Next(ctx context.Context) ([]byte, error) {
	for {
		r.log.mu.Lock()
		if r.at.full && r.off == len(r.at.data) && r.at.next != nil && !r.at.gone {
			r.at, r.off = r.at.next, 0
		}
		piece, grown, closed, gone := r.at.data[r.off:], r.log.grown, r.log.closed, r.at.gone
		r.log.mu.Unlock()
		switch {
		case closed != nil:
			return nil, closed
		case gone:
			return nil, ErrBehind
		case len(piece) > 0:
			piece = piece[:min(len(piece), maxPiece)]
			r.off += len(piece)
			return piece, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-grown:
		}
	}
}

// Kind is the type of a frame.
type Kind byte

// The kinds of frames.
const (
	// Change is the frame of a commit: Head has the value of its head.
	Change Kind = 'c'
	// Settings is the frame of a change of the fleet's settings, whose value is in Head.
	Settings Kind = 's'
	// State begins a transfer of all objects as of one commit, whose head is in Head and Mod. Frames of kind Objects follow, and then End.
	State Kind = 'h'
	// Objects is a frame with a part of the objects of a State, in Ops.
	Objects Kind = 'o'
	// End is the frame after the last Objects of a State.
	End Kind = 'e'
)

// Commit is one frame of the stream. Fields that its Kind does not use are empty.
type Commit struct {
	Kind Kind
	// Mod is the modification revision of the head in etcd: the position of a commit.
	Mod int64
	// Head is the value of the head. Note is the store's description of the commit, if Head does not contain it.
	Head, Note []byte
	Ops        []Op
}

// Op puts the value of a key, or removes the key.
type Op struct {
	Key    string
	Value  []byte
	Remove bool
}

// maxFrame bounds a frame, in bytes. A large commit is one frame.
const maxFrame = 1<<30 + 1<<20

// ErrMalformed means that bytes of the stream are not a valid frame.
var ErrMalformed = errors.New("the stream of commits cannot be read: it is damaged, or the core box has another version")

// AppendText appends a string to b, preceded by its length.
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

// Parser decodes the strings and operations of a frame's body.
type Parser struct {
	rest []byte
	err  error
}

// NewParser returns a Parser of a body. Its results share the memory of the body.
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

// Text decodes a string.
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

// Ops decodes the operations up to the end of the body. The error is that of this call or of an earlier one.
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

// parse decodes a frame from which the length was removed. It is the inverse of Append.
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

// Decoder decompresses a stream and reads the frames in it.
type Decoder struct {
	from  *bufio.Reader
	plain *bufio.Reader // decompressed stream; nil until the first read
}

// NewDecoder returns a Decoder of the compressed stream from. It reads nothing until the first call of Next.
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

// wrong returns an error that wraps ErrMalformed if err means damaged data. It returns other errors, such as the end of the stream, unchanged.
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

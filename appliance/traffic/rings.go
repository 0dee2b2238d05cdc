package traffic

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/task"
)

const (
	// recordEvery is the interval of scans while traffic is recorded. recordShare limits them to half a percent of a core: the interval is at least
	// recordShare times the CPU time of a scan.
	recordEvery = 10 * time.Second
	recordShare = 200
	// saveEvery is the interval at which the rings of the box are written to a file, saveServices the interval for the rings of Services.
	saveEvery    = time.Minute
	saveServices = time.Hour

	fineStep, finePoints       = 10, 90 // in seconds: 15 minutes
	coarseStep, coarsePoints   = 60, 1440
	serviceStep, servicePoints = 900, 96
	// mostRings is the maximum number of Services with rings, which take 3.7 kB each.
	mostRings = 2000

	ringsFile   = "traffic.rings"
	serviceFile = "traffic-services.rings"
	// mostRingsFile is the maximum number of bytes that are read from a file of rings.
	mostRingsFile = 16 << 20
)

// A point holds the sums for a period: recorded seconds; new, refused and failed connections; and Open, the open connections times seconds.
type point struct{ Seconds, New, Refused, Failed, Open float32 }

// pointBytes is the size of a point in a file, in bytes.
const pointBytes = 5 * 4

func (p *point) plus(o point) {
	p.Seconds, p.New, p.Refused, p.Failed, p.Open = p.Seconds+o.Seconds, p.New+o.New, p.Refused+o.Refused, p.Failed+o.Failed, p.Open+o.Open
}

// ring holds the newest points of a time series with one point per step. Point n begins n steps after the Unix epoch and is stored at index n modulo
// len(points).
type ring struct {
	step   int64 // in seconds
	last   int64 // number of the newest point
	points []point
}

func newRing(step int64, points int) ring { return ring{step: step, points: make([]point, points)} }

// at returns point n for modification, nil if the ring begins later. If n is newer than all points, it adds empty points up to n.
func (r *ring) at(n int64) *point {
	size := int64(len(r.points))
	if n <= r.last-size {
		return nil
	}
	for i := max(r.last+1, n-size+1); i <= n; i++ {
		r.points[i%size] = point{}
	}
	r.last = max(r.last, n)
	return &r.points[n%size]
}

// get returns point n, an empty one if the ring does not have it.
func (r *ring) get(n int64) point {
	if n > r.last || n <= r.last-int64(len(r.points)) || n < 0 {
		return point{}
	}
	return r.points[n%int64(len(r.points))]
}

// add adds sums for the time between from and to, distributed over the points of that time. p.Open is the number of open connections.
func (r *ring) add(from, to time.Time, p point) {
	begin, end := float64(from.UnixMilli())/1000, float64(to.UnixMilli())/1000
	begin = max(begin, end-float64(r.step*int64(len(r.points))))
	whole := to.Sub(from).Seconds()
	for n := int64(begin) / r.step; float64(n*r.step) < end; n++ {
		at := r.at(n)
		if at == nil {
			continue
		}
		seconds := min(end, float64((n+1)*r.step)) - max(begin, float64(n*r.step))
		share := float32(seconds / whole)
		at.Seconds += float32(seconds)
		at.New += p.New * share
		at.Refused += p.Refused * share
		at.Failed += p.Failed * share
		at.Open += p.Open * float32(seconds)
	}
}

// pair has the rings of the box or of a Service: fine for the last 15 minutes, coarse for a day. seen is the time of the last scan with
// connections, busy the number of new and open connections in it.
type pair struct {
	fine, coarse ring
	seen         time.Time
	busy         float32
}

// rings holds the recorded traffic of the last 24 hours, for the box and for Services.
type rings struct {
	mu       sync.Mutex
	box      pair
	services map[string]*pair
	newest   time.Time // time of the last scan
	saved    bool      // the last write to a file succeeded
}

func newRings() *rings {
	return &rings{box: *newPair(""), services: map[string]*pair{}, saved: true}
}

// newPair returns empty rings for a Service; for the box if service is "".
func newPair(service string) *pair {
	if service == "" {
		return &pair{fine: newRing(fineStep, finePoints), coarse: newRing(coarseStep, coarsePoints)}
	}
	return &pair{fine: newRing(fineStep, finePoints), coarse: newRing(serviceStep, servicePoints)}
}

// add adds the traffic of a scan to the rings.
func (r *rings) add(l *Snapshot) {
	if l.Since <= 0 {
		return
	}
	sums := map[string]point{}
	var all point
	for _, m := range l.busy() {
		p := point{New: float32(m.fresh), Refused: float32(m.refusing), Failed: float32(m.failing), Open: float32(m.Open)}
		if p == (point{}) {
			continue
		}
		s := sums[m.service]
		all.plus(p)
		s.plus(p)
		sums[m.service] = s
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.At.Before(r.newest.Add(-fineStep * time.Second)) { // the clock was set back
		r.box, r.services = newRings().box, map[string]*pair{}
	}
	from := l.At.Add(-l.Since)
	r.newest = l.At
	r.box.add(from, l.At, all)
	services := slices.Collect(maps.Keys(sums))
	if len(r.services)+len(services) > mostRings { // the busiest first
		slices.SortFunc(services, func(a, b string) int {
			return cmp.Compare(sums[b].New+sums[b].Open, sums[a].New+sums[a].Open)
		})
	}
	full := false
	for _, service := range services {
		p, s := sums[service], r.services[service]
		if s == nil {
			if full = full || len(r.services) >= mostRings && !r.leave(l.At, p.New+p.Open); full {
				continue
			}
			s = newPair(service)
			r.services[service] = s
		}
		s.seen, s.busy = l.At, p.New+p.Open
		s.add(from, l.At, p)
	}
}

func (p *pair) add(from, to time.Time, sums point) {
	p.fine.add(from, to, sums)
	p.coarse.add(from, to, sums)
}

// leave removes the rings of one Service, to make room for another one that has busy new and open connections in the scan at now. It removes the
// Service whose last scan with connections is the oldest and, among equal ones, had the fewest. If that Service has at least busy connections in the
// scan at now, leave removes nothing and returns false.
func (r *rings) leave(now time.Time, busy float32) bool {
	var least string
	for service, p := range r.services {
		if l := r.services[least]; l == nil || cmp.Or(p.seen.Compare(l.seen), cmp.Compare(p.busy, l.busy)) < 0 {
			least = service
		}
	}
	if l := r.services[least]; l.seen.Equal(now) && l.busy >= busy {
		return false
	}
	delete(r.services, least)
	return true
}

// graph returns the traffic of the last 15 minutes, or of the last day if day is set. It is the traffic of a Service, or of the box if service is "".
func (r *rings) graph(service string, day bool, now time.Time) wire.TrafficGraph {
	r.mu.Lock()
	defer r.mu.Unlock()
	of, known, group := &r.box.fine, &r.box.fine, int64(1)
	if day {
		of, known, group = &r.box.coarse, &r.box.coarse, 5
	}
	if service != "" {
		p := r.services[service]
		if p == nil {
			p = &pair{fine: ring{step: fineStep, points: make([]point, 1)}, coarse: ring{step: serviceStep, points: make([]point, 1)}}
		}
		if of = &p.fine; day {
			of, group = &p.coarse, 1
		}
	}
	step := of.step * group
	n := known.step * int64(len(known.points)) / step
	last := (now.Unix() - 1) / step
	g := wire.TrafficGraph{From: time.Unix((last-n+1)*step, 0).UTC(), Step: time.Duration(step) * time.Second, Points: make([]wire.TrafficPoint, n)}
	for i := range n {
		var sum point
		var seconds float64
		for k := (last - n + 1 + i) * step / of.step; k < (last-n+2+i)*step/of.step; k++ {
			sum.plus(of.get(k))
		}
		for k := (last - n + 1 + i) * step / known.step; k < (last-n+2+i)*step/known.step; k++ {
			seconds += float64(known.get(k).Seconds)
		}
		if seconds < 0.5 { // the point has only begun, or nothing was read
			continue
		}
		per := func(v float32) float64 { return float64(v) / seconds }
		g.Points[i] = wire.TrafficPoint{Known: true, New: per(sum.New), Refused: per(sum.Refused), Failed: per(sum.Failed), Open: per(sum.Open)}
	}
	return g
}

// head returns the first line of a file of rings, which has the format version and the name of the box.
func head(box string) string { return "svcctl traffic rings 1 " + box + "\n" }

// appendRing appends the binary encoding of a ring.
func appendRing(to []byte, r *ring) []byte {
	to = binary.LittleEndian.AppendUint64(to, uint64(r.last))
	for i := range r.points {
		p := &r.points[i]
		for _, v := range [...]float32{p.Seconds, p.New, p.Refused, p.Failed, p.Open} {
			to = binary.LittleEndian.AppendUint32(to, math.Float32bits(v))
		}
	}
	return to
}

// readRing decodes a ring. It returns an error if the ring has points after now.
func readRing(from *bytes.Reader, r *ring, now time.Time) error {
	content := make([]byte, 8+pointBytes*len(r.points))
	if _, err := io.ReadFull(from, content); err != nil {
		return err
	}
	if r.last = int64(binary.LittleEndian.Uint64(content)); r.last < 0 || r.last > now.Unix()/r.step {
		return errors.New("it is of the future")
	}
	content = content[8:]
	for i := range r.points {
		p := &r.points[i]
		for _, v := range [...]*float32{&p.Seconds, &p.New, &p.Refused, &p.Failed, &p.Open} {
			*v = math.Float32frombits(binary.LittleEndian.Uint32(content))
			if content = content[4:]; !(*v >= 0 && *v <= math.MaxFloat32) {
				return fmt.Errorf("a count of %v", *v)
			}
		}
	}
	return nil
}

// load reads the rings that an earlier process on this box wrote. It ignores damaged files and those of other boxes.
func (r *rings) load(dir, box string, now time.Time, log *slog.Logger) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range []string{ringsFile, serviceFile} {
		content, err := readBounded(filepath.Join(dir, name))
		if err != nil {
			if !os.IsNotExist(err) {
				log.Warn("the traffic before this start is not known", "file", filepath.Join(dir, name), "err", err)
			}
			continue
		}
		content, own := bytes.CutPrefix(content, []byte(head(box)))
		for from := bytes.NewReader(content); own && from.Len() > 0; {
			var size uint16
			if err = binary.Read(from, binary.LittleEndian, &size); err != nil {
				break
			}
			service := make([]byte, size)
			if _, err = io.ReadFull(from, service); err != nil {
				break
			}
			p := newPair(string(service))
			if err = cmp.Or(readRing(from, &p.fine, now), readRing(from, &p.coarse, now)); err != nil {
				break
			}
			if size == 0 {
				r.box = *p
			} else if len(r.services) < mostRings {
				p.seen = time.Unix((p.fine.last+1)*p.fine.step, 0)
				r.services[string(service)] = p
			}
		}
		if err != nil {
			log.Warn("a part of the traffic before this start is not known", "file", filepath.Join(dir, name), "err", err)
		}
	}
}

func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, mostRingsFile))
}

// save writes rings to a file in dir: those of Services if services is set, otherwise those of the box.
func (r *rings) save(dir, box string, services bool, log *slog.Logger) {
	content := []byte(head(box))
	add := func(service string, p *pair) {
		content = binary.LittleEndian.AppendUint16(content, uint16(len(service)))
		content = append(content, service...)
		content = appendRing(appendRing(content, &p.fine), &p.coarse)
	}
	r.mu.Lock()
	name := ringsFile
	if services {
		name = serviceFile
		for service, p := range r.services {
			if r.newest.Sub(p.seen) > servicePoints*serviceStep*time.Second {
				delete(r.services, service)
				continue
			}
			add(service, p)
		}
	} else {
		add("", &r.box)
	}
	r.mu.Unlock()
	path := filepath.Join(dir, name)
	err := os.WriteFile(path+".new", content, 0o600)
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		_ = os.Remove(path + ".new")
		if r.saved {
			log.Warn("the traffic so far is kept in memory alone", "err", err)
		}
	}
	r.saved = err == nil
}

// Record makes a scan every 10 seconds, or less often if scans take more than half a percent of a core, until ctx is done. It stores the traffic of
// 24 hours in dir. Remember must be called before.
func (a *Queries) Record(ctx context.Context, dir, box string, log *slog.Logger) error {
	o := a.observer
	defer func() {
		o.rings.save(dir, box, false, log)
		o.rings.save(dir, box, true, log)
	}()
	begun := o.now()
	boxAt, servicesAt := begun, begun
	failed := false
	task.Repeat(ctx, nil, func() time.Time {
		pause, err := o.record()
		if err != nil && !failed {
			log.Warn("the traffic is not recorded: connections cannot be read", "err", err)
		}
		failed = err != nil
		if now := o.now(); now.Sub(boxAt).Abs() >= saveEvery {
			boxAt = now
			o.rings.save(dir, box, false, log)
		}
		if now := o.now(); now.Sub(servicesAt).Abs() >= saveServices {
			servicesAt = now
			o.rings.save(dir, box, true, log)
		}
		return time.Now().Add(pause)
	})
	return nil
}

// Remember enables the recording of traffic for Graph, and reads from dir the traffic that the previous process recorded. It must be called before
// the first query.
func (a *Queries) Remember(dir, box string, log *slog.Logger) {
	a.observer.rings = newRings()
	a.observer.rings.load(dir, box, time.Now(), log)
}

// Begin makes the first scan, to which the rates of the next one are relative. It must be called when all Services are served. It does nothing if
// traffic is not recorded.
func (a *Queries) Begin() {
	if a.observer.rings != nil {
		_, _ = a.observer.record() // of an error Record has the reason
	}
}

// Graph returns the traffic of the last 15 minutes, or of the last day if day is set, of a Service ("namespace/name"), or of all if service is "". It
// has no points if traffic is not recorded.
func (a *Queries) Graph(service string, day bool) (g wire.TrafficGraph) {
	if a.observer.rings != nil {
		g = a.observer.rings.graph(service, day, a.observer.now())
	}
	return g
}

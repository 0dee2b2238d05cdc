package dashboard

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/api/wire"
)

// The geometry of the graph in units of its SVG view box. New connections are drawn as an area, refused and failed ones as bars below it, and open
// ones as a line at the bottom.
const (
	graphWidth         = 1000.0
	newTop, newBottom  = 4.0, 125.0
	barTop, barBottom  = 140.0, 180.0
	openTop, openBotom = 190.0, 231.0
	mostMarks          = 6
)

// graph has the paths and labels of the graph of traffic over time, for the template.
type graph struct {
	Area, Line, Refused, Failed, Open, Marks string // SVG paths
	NewMost, BadMost, OpenMost               string // labels of the maximum of each y axis
	Times                                    []time.Time
	Events                                   []Event
	From                                     time.Time
	Step                                     int    // seconds between points
	Points                                   string // JSON for the script
	Text                                     string // for screen readers
}

// graphOf draws traffic over time, and marks the newest faults among the events. It returns nil for fewer than two points.
func graphOf(g wire.TrafficGraph, events []Event, day bool) *graph {
	n := len(g.Points)
	if n < 2 {
		return nil
	}
	d := &graph{From: g.From, Step: int(g.Step / time.Second)}
	var most wire.TrafficPoint
	known, bad := 0, 0.0
	for i := range g.Points {
		p := &g.Points[i]
		most.New, most.Open = max(most.New, p.New), max(most.Open, p.Open)
		most.Refused, most.Failed, bad = max(most.Refused, p.Refused), max(most.Failed, p.Failed), max(bad, p.Refused+p.Failed)
		if p.Known {
			known++
		}
	}
	newMost, badMost, openMost := roundUp(most.New), roundUp(bad), roundUp(most.Open)
	x := func(i float64) float64 { return i / float64(n-1) * graphWidth }
	draw := func(value func(*wire.TrafficPoint) float64, most, top, bottom float64) (line, area string) {
		y := func(p *wire.TrafficPoint) float64 { return bottom - value(p)/most*(bottom-top) }
		return curve(g.Points, x, y, bottom)
	}
	d.Line, d.Area = draw(func(p *wire.TrafficPoint) float64 { return p.New }, newMost, newTop, newBottom)
	d.Open, _ = draw(func(p *wire.TrafficPoint) float64 { return p.Open }, openMost, openTop, openBotom)
	var refused, failed strings.Builder
	width := graphWidth / float64(n) * 0.7
	for i := range g.Points {
		p := &g.Points[i]
		high := func(v float64) float64 { return v / badMost * (barBottom - barTop) }
		if p.Refused > 0 {
			fmt.Fprintf(&refused, "M%s %sv%sh%sv%sz", short(x(float64(i))-width/2), short(barBottom), short(-high(p.Refused)), short(width), short(high(p.Refused)))
		}
		if p.Failed > 0 {
			fmt.Fprintf(&failed, "M%s %sv%sh%sv%sz", short(x(float64(i))-width/2), short(barBottom-high(p.Refused)), short(-high(p.Failed)), short(width), short(high(p.Failed)))
		}
	}
	d.Refused, d.Failed = refused.String(), failed.String()
	d.NewMost, d.BadMost, d.OpenMost = edge(newMost)+" new/s", edge(badMost)+" refused or failed/s", edge(openMost)+" open"
	span := g.Step * time.Duration(n-1)
	for i := range 4 {
		d.Times = append(d.Times, g.From.Add(span*time.Duration(i)/3))
	}
	for _, e := range events {
		if at := e.At.Sub(g.From); e.Mark && at >= 0 && at <= span+g.Step && len(d.Events) < mostMarks {
			d.Events = append(d.Events, e)
			d.Marks += fmt.Sprintf("M%s 0V232", short(min(at.Seconds()/span.Seconds(), 1)*graphWidth))
		}
	}
	values := map[string][]float64{"new": make([]float64, n), "ref": make([]float64, n), "fail": make([]float64, n), "open": make([]float64, n)}
	for i := range g.Points {
		p := &g.Points[i]
		for name, v := range map[string]float64{"new": p.New, "ref": p.Refused, "fail": p.Failed, "open": p.Open} {
			if values[name][i] = math.Round(v*10) / 10; v >= 10 {
				values[name][i] = math.Round(v)
			}
			if !p.Known {
				values[name][i] = -1
			}
		}
	}
	text, err := json.Marshal(values)
	if err != nil {
		panic(err) // numbers: a bug
	}
	d.Points = string(text)
	period := "15 minutes"
	if day {
		period = "24 hours"
	}
	d.Text = fmt.Sprintf("Traffic of %s: at most %s new connections a second, %s refused, %s failed, %s open", period, wire.Rate(most.New), wire.Rate(most.Refused), wire.Rate(most.Failed), wire.Rate(most.Open))
	if known == 0 {
		d.Text = "No traffic is recorded yet"
	}
	return d
}

// curve draws the points with measured values as a line and as the area below it, with gaps where no values were read.
func curve(points []wire.TrafficPoint, x func(float64) float64, y func(*wire.TrafficPoint) float64, bottom float64) (line, area string) {
	var l, a strings.Builder
	for i := 0; i < len(points); i++ {
		if !points[i].Known {
			continue
		}
		first := i
		for ; i < len(points) && points[i].Known; i++ {
			c := "L"
			if i == first {
				c = "M"
				fmt.Fprintf(&a, "M%s %s", short(x(float64(i))), short(bottom))
			}
			fmt.Fprintf(&l, "%s%s %s", c, short(x(float64(i))), short(y(&points[i])))
			fmt.Fprintf(&a, "L%s %s", short(x(float64(i))), short(y(&points[i])))
		}
		if i-first == 1 { // a point by itself
			l.WriteString("h1")
		}
		fmt.Fprintf(&a, "L%s %sZ", short(x(float64(i-1))), short(bottom))
	}
	return l.String(), a.String()
}

// spark is a small curve of new connections.
type spark struct{ Line, Area string }

// The size of a sparkline in units of its SVG view box, and the number of points of the graph that are averaged into one of its points.
const sparkWidth, sparkHeight, sparkPoints = 90.0, 24.0, 3

// sparkOf draws the new connections over time. It returns nil if there are none.
func sparkOf(g wire.TrafficGraph) *spark {
	var points []wire.TrafficPoint
	most := 0.0
	for i := 0; i+sparkPoints <= len(g.Points); i += sparkPoints {
		var mean wire.TrafficPoint
		n := 0.0
		for _, p := range g.Points[i : i+sparkPoints] {
			if p.Known {
				n, mean.New, mean.Known = n+1, mean.New+p.New, true
			}
		}
		if n > 0 {
			mean.New /= n
		}
		most = max(most, mean.New)
		points = append(points, mean)
	}
	if most == 0 {
		return nil
	}
	line, area := curve(points, func(i float64) float64 { return i / float64(len(points)-1) * sparkWidth },
		func(p *wire.TrafficPoint) float64 { return sparkHeight - p.New/most*(sparkHeight-3) - 1 }, sparkHeight)
	return &spark{line, area}
}

// short formats a coordinate with at most one decimal.
func short(v float64) string { return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64) }

// roundUp returns the smallest of 1, 2, 3, 5, 8 or 10 times a power of ten that is at least v, for the maximum of a y axis.
func roundUp(v float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(max(v, 1))))
	for _, n := range []float64{1, 2, 3, 5, 8, 10} {
		if v <= n*power {
			return n * power
		}
	}
	return 20 * power
}

func edge(v float64) string { return wire.Grouped(int(v)) }

// beat holds a bar of cells that shows an endpoint's health over 24 hours, and its text.
type beat struct {
	Cells []beatCell
	Text  string
}

// beatCell is one cell of a bar, such as half an hour of a beat.
type beatCell struct {
	X     int
	Class string // up, dn (down) or un (unknown)
}

const beatCells, beatWidth = 48, 5

// beatOf draws the health of an endpoint over the 24 hours before now. down has the times at which it was down. Cells from before the recorded
// history are drawn as unknown.
func beatOf(down []Span, known, now time.Time) *beat {
	const cell = 24 * time.Hour / beatCells
	b := &beat{}
	first := now.Truncate(cell).Add(cell - 24*time.Hour)
	times := 0
	for i := range beatCells {
		from := first.Add(time.Duration(i) * cell)
		c := beatCell{X: i * beatWidth, Class: "up"}
		if !from.Add(cell).After(known) {
			c.Class = "un"
		}
		for _, s := range down {
			if s.From.Before(from.Add(cell)) && s.To.After(from) {
				c.Class = "dn"
			}
		}
		b.Cells = append(b.Cells, c)
	}
	for _, s := range down {
		if s.To.After(first) {
			times++
		}
	}
	switch times {
	case 0:
		b.Text = "never down"
	case 1:
		b.Text = "down once"
	default:
		b.Text = "down " + strconv.Itoa(times) + " times"
	}
	if known.After(first.Add(cell)) {
		b.Text += " since " + known.UTC().Format("15:04")
	}
	return b
}

package rest

import (
	"cmp"
	"mime"
	"slices"
	"strconv"
	"strings"
)

// clause is one media type that a client accepts, with its parameters.
type clause struct {
	mediaType string // application/json, application/*, */*
	quality   float64
	params    map[string]string
}

// parseAccept reads the values of an Accept header (RFC 9110, 12.5.1), those that are wanted
// most first. What cannot be read is left out.
func parseAccept(header []string) []clause {
	var clauses []clause
	for text := range strings.SplitSeq(strings.Join(header, ","), ",") {
		mediaType, params, err := mime.ParseMediaType(text)
		if err != nil {
			continue
		}
		c := clause{mediaType: mediaType, quality: 1, params: params}
		if q, ok := params["q"]; ok {
			delete(params, "q")
			if c.quality, err = strconv.ParseFloat(q, 64); err != nil {
				continue
			}
		}
		if c.quality > 0 {
			clauses = append(clauses, c)
		}
	}
	slices.SortStableFunc(clauses, func(a, b clause) int {
		return cmp.Or(cmp.Compare(b.quality, a.quality), cmp.Compare(a.wildcards(), b.wildcards()))
	})
	return clauses
}

// wildcards counts the wildcards of a clause: 0 for a type, 1 for type/*, 2 for */*.
func (c clause) wildcards() int { return strings.Count(c.mediaType, "*") }

// takes reports whether a media type without parameters is one that the clause means.
func (c clause) takes(mediaType string) bool {
	if c.mediaType == mediaType || c.mediaType == "*/*" {
		return true
	}
	kind, isRange := strings.CutSuffix(c.mediaType, "/*")
	return isRange && strings.HasPrefix(mediaType, kind+"/")
}

// accepts reports whether a header accepts a media type without parameters; no header
// accepts everything.
func accepts(header []string, mediaType string) bool {
	return len(header) == 0 || slices.ContainsFunc(parseAccept(header), func(c clause) bool { return c.takes(mediaType) })
}

// asksFor reports whether a list of encodings, as in Accept-Encoding, has one of a name.
func asksFor(header []string, encoding string) bool {
	return slices.ContainsFunc(strings.Split(strings.Join(header, ","), ","), func(text string) bool {
		name, quality, _ := strings.Cut(text, ";")
		return strings.TrimSpace(name) == encoding && !slices.Contains([]string{"q=0", "q=0.0"}, strings.TrimSpace(quality))
	})
}

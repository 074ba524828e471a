// How figures are written. Unknown is “–”, zero is “0”; three significant digits.

export const UNKNOWN = '–';
const isKnown = value => typeof value === 'number' && Number.isFinite(value);

const scaled = (value, units) => {
  let index = 0;
  while (Math.abs(value) >= 999.5 && index + 1 < units.length) { value /= 1000; index += 1; }
  return [value, units[index]];
};
const threeDigits = value => value.toFixed(Math.abs(value) >= 99.95 ? 0 : Math.abs(value) >= 9.995 ? 1 : 2);

export const bytes = value => {
  if (!isKnown(value)) return UNKNOWN;
  const [number, unit] = scaled(value, ['B', 'kB', 'MB', 'GB', 'TB', 'PB']);
  return unit === 'B' ? `${Math.round(number)} B` : `${threeDigits(number)} ${unit}`;
};

/** [figure, unit], for large figures whose unit is set smaller. */
export const countParts = value => {
  if (!isKnown(value)) return [UNKNOWN, ''];
  const [number, unit] = scaled(value, ['', 'k', 'M', 'B', 'T']);
  return [unit ? threeDigits(number) : String(Math.round(number)), unit];
};
export const count = value => countParts(value).filter(Boolean).join('\u2009');

/** An integer with commas above 9,999. */
export const integer = value => !isKnown(value) ? UNKNOWN : value > 9999 ? value.toLocaleString('en-US') : String(value);

export const loss = value => isKnown(value) ? value.toFixed(3) : UNKNOWN;
export const percent = (share, digits = 1) => isKnown(share) ? `${(100 * share).toFixed(digits)} %` : UNKNOWN;

export const duration = seconds => {
  if (!isKnown(seconds)) return UNKNOWN;
  const value = Math.max(0, seconds);
  if (value > 0 && value < 0.05) return '< 0.1 s';
  if (value < 9.95) return `${value.toFixed(1)} s`;
  if (value < 59.5) return `${Math.round(value)} s`;
  const whole = Math.round(value);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  const minutes = Math.round(value / 60);
  return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, '0')} min`;
};

export const milliseconds = value => {
  if (!isKnown(value)) return UNKNOWN;
  if (value >= 999.5) return duration(value / 1000);
  return `${value < 9.95 ? value.toFixed(1) : Math.round(value)} ms`;
};

/** A clock's difference from this node's: “0.3 s ahead”. */
export const clockOffset = ms => !isKnown(ms) ? UNKNOWN : `${milliseconds(Math.abs(ms))} ${ms < 0 ? 'behind' : 'ahead'}`;

/** An expectation: no decimal where there is nothing behind it. */
export const expected = seconds => duration(seconds).replace('.0 s', ' s');

export const minutesSeconds = seconds => {
  const whole = Math.max(0, Math.round(seconds));
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, '0')}`;
};

export const about = seconds => {
  if (seconds < 0.5) return 'any moment';
  if (seconds < 59.5) return `about ${Math.round(seconds)} s`;
  if (seconds < 3570) return `about ${Math.round(seconds / 60)} min`;
  const minutes = Math.round(seconds / 300) * 5, rest = minutes % 60;
  return `about ${Math.floor(minutes / 60)} h${rest ? ` ${String(rest).padStart(2, '0')} min` : ''}`;
};
export const inAbout = seconds => { const words = about(seconds); return words === 'any moment' ? words : `in ${words}`; };

/** 24-hour local time. */
export const clock = date => date.toLocaleTimeString('en-GB', { hour12: false });

export const shortId = id => id ? id.slice(-5) : UNKNOWN;
export const shortHash = hash => hash ? `${hash.slice(0, 4)}…${hash.slice(-4)}` : UNKNOWN;
